// The configuration files of a tunnel with streams.

import { SCRATCH } from './sandbox.js';

/** The TUN device of the server. */
export const FAR_TUN = 'rw1';

/** client.toml of `box`. */
export function clientFile({ box, server, address, strategy }) {
  return `name = "${box.name}"
private_key = "${box.keys.private_key}"
state_directory = "${SCRATCH}/${box.tun}"

[server]
addresses = ["${address}"]
public_key = "${server.public_key}"

[uplinks]
include = [${box.uplinks.map((name) => `"${name}"`).join(', ')}]

[tun]
name = "${box.tun}"

[routes]
into_tunnel = ["${box.to}/32"]

${streams(strategy)}listen = "${box.listen}"
tcp = "${box.split ? 'split' : 'tunnel'}"
`;
}

/** server.toml that knows `boxes`. */
export function serverFile({ server, boxes, strategy }) {
  const peer = ({ name, keys, inner }) => `
[[peers]]
name = "${name}"
public_key = "${keys.public_key}"
addresses = ["${inner}/32"]
`;
  return `listen = "0.0.0.0:4433"
private_key = "${server.private_key}"
state_directory = "${SCRATCH}/${FAR_TUN}"
addresses = ["10.77.0.1/24"]

[tun]
name = "${FAR_TUN}"

${streams(strategy)}${boxes.map(peer).join('')}`;
}

const streams = (strategy) => `[streams]\n${strategy === undefined ? '' : `strategy = "${strategy}"\n`}`;
