// The configuration files of the tunnels.

import { run, SCRATCH } from '../shared/sandbox.js';
import { LINKS } from './links.js';
import { CENTRE_NETWORK, ROUTER_ADDRESS, VEHICLE_NETWORK } from './world.js';

/** The TUN device of the vehicle's end, which names the instance, too. */
const NEAR_TUN = 'rw0';
/** That of the other end. */
export const FAR_TUN = 'rw1';

/** router.toml of both sides, `{ near, far }`. */
export function routerFiles(setting) {
  const order = ordering(setting);
  const file = ({ tun, host, intoTunnel, link }) => `addresses = ["10.88.0.${host}/30"]
into_tunnel = ["${intoTunnel}"]
${order}
[tun]
name = "${tun}"
${LINKS.map(link).join('')}`;
  return {
    near: file({
      tun: NEAR_TUN,
      host: 2,
      intoTunnel: CENTRE_NETWORK,
      link: ({ name }, index) => `
[[links]]
name = "${name}"
interface = "${name}"
listen = "10.201.${index + 1}.2:6081"
peer = "${ROUTER_ADDRESS}:6081"
`,
    }),
    far: file({
      tun: FAR_TUN,
      host: 1,
      intoTunnel: VEHICLE_NETWORK,
      link: ({ name }, index) => `
[[links]]
name = "${name}"
listen = "${ROUTER_ADDRESS}:6081"
peer = "10.201.${index + 1}.2:6081"
`,
    }),
  };
}

/** What is said of the order of packets. */
function ordering({ order, bufferMs }) {
  const wait = bufferMs === undefined ? '' : `max_buffer_ms = ${bufferMs}\n`;
  return `ordering = "${order}"\n${wait}`;
}

/** client.toml and server.toml with fresh keys and one lane, `{ near, far }`. */
export function tunnelFiles(roadweave, setting) {
  const keys = () => JSON.parse(run(roadweave, 'keygen', '--json'));
  const [client, server] = [keys(), keys()];
  const lane = (order) => `[[lanes]]\nname = "call"\nstrategy = "${setting.strategy}"\n${ordering(order)}`;
  // What comes back says how the picture came: to even its own delay would only make it late.
  const back = setting.order === 'even' ? { order: 'pass' } : setting;
  return {
    near: `name = "vehicle"
private_key = "${client.private_key}"
state_directory = "${SCRATCH}"

[server]
addresses = ["${ROUTER_ADDRESS}:4433"]
public_key = "${server.public_key}"

[uplinks]
include = [${LINKS.map(({ name }) => `"${name}"`).join(', ')}]

[tun]
name = "${NEAR_TUN}"

[routes]
into_tunnel = ["${CENTRE_NETWORK}"]
masquerade = false

${lane(setting)}`,
    far: `listen = "0.0.0.0:4433"
private_key = "${server.private_key}"
state_directory = "${SCRATCH}"
addresses = ["10.77.0.1/24"]
masquerade = false

[tun]
name = "${FAR_TUN}"

${lane(back)}
[[peers]]
name = "vehicle"
public_key = "${client.public_key}"
addresses = ["10.77.0.2/32", "${VEHICLE_NETWORK}"]
`,
  };
}
