// The namespaces of a call, as those of `roadweave demo`.
//
//   vehicle ------- box ======= links ------- centre-router ------ centre
//   browser         tunnel      emulator's    tunnel               browser
//                               far ends
//   192.168.70.2    .1          198.51.100.1  .2     203.0.113.1   .2
//                       10.201.N.2 = 10.201.N.1   (one per link; the emulator's devices)
//
// No address is translated.

import { addNamespace, connect, ip, setKernel } from '../shared/network.js';

export const VEHICLE_NETWORK = '192.168.70.0/24';
export const CENTRE_NETWORK = '203.0.113.0/24';
/** Where the tunnel's end in the data centre listens, and the network that it is in. */
export const ROUTER_ADDRESS = '198.51.100.2';

/** Builds the namespaces; only inside a sandbox. */
export function buildWorld() {
  for (const name of ['vehicle', 'box', 'links', 'centre-router', 'centre']) addNamespace(name);
  connect(['vehicle', 'eth0', '192.168.70.2/24'], ['box', 'lan0', '192.168.70.1/24']);
  connect(['links', 'eth0', '198.51.100.1/24'], ['centre-router', 'wan0', `${ROUTER_ADDRESS}/24`]);
  connect(['centre-router', 'lan0', '203.0.113.1/24'], ['centre', 'eth0', '203.0.113.2/24']);
  for (const name of ['box', 'links', 'centre-router']) setKernel(name, 'net/ipv4/ip_forward', 1);
  ip('vehicle', 'route add default via 192.168.70.1');
  ip('centre', 'route add default via 203.0.113.1');
  ip('centre-router', 'route add 10.201.0.0/16 via 198.51.100.1');
  ip('links', `route add ${CENTRE_NETWORK} via ${ROUTER_ADDRESS}`);
}

/** Leads the call over link number `number` (from 1) alone, without a tunnel. */
export function routeOverLink(number) {
  ip('box', `route add ${CENTRE_NETWORK} via 10.201.${number}.1`);
  ip('links', `route add ${VEHICLE_NETWORK} via 10.201.${number}.2`);
  ip('centre-router', `route add ${VEHICLE_NETWORK} via 198.51.100.1`);
  return () => {
    ip('box', `route del ${CENTRE_NETWORK}`);
    ip('links', `route del ${VEHICLE_NETWORK}`);
    ip('centre-router', `route del ${VEHICLE_NETWORK}`);
  };
}
