"""A camera on the network: RTSP at the port that is the argument, as /camera."""

import sys

import gi

gi.require_version("GstRtspServer", "1.0")
from gi.repository import GLib, Gst, GstRtspServer  # noqa: E402

Gst.init(None)
server = GstRtspServer.RTSPServer(service=sys.argv[1])
factory = GstRtspServer.RTSPMediaFactory(shared=True)
factory.set_launch(
    "( videotestsrc is-live=true ! video/x-raw,format=I420,width=320,height=240,framerate=15/1"
    " ! x264enc tune=zerolatency speed-preset=ultrafast key-int-max=15"
    " ! rtph264pay name=pay0 pt=96 )"
)
server.get_mount_points().add_factory("/camera", factory)
server.attach(None)
GLib.MainLoop().run()
