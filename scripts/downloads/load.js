// Both ends of a download; the kernel's or the box's affairs are what lies between them.
//
//   load.js serve ADDRESS PORT              sends as many bytes as a connection asks for; says when
//                                           it is ready
//   load.js get   ADDRESS PORT BYTES COUNT SECONDS [PROXY]
//                                           one connection after the other; SECONDS cut one off
//
// `get` prints a line of JSON for each: what arrived, and how long it took from the connection's
// begin to the last byte. PROXY is the host:port of a SOCKS5 proxy. Under `mptcpize run` both are
// ends of MPTCP.

import net from 'node:net';

const CHUNK = Buffer.alloc(65_536, 'x');

function serve(address, port) {
  const server = net.createServer((socket) => {
    socket.on('error', () => socket.destroy());
    socket.once('data', (request) => {
      let left = Number(request.readBigUInt64BE());
      const send = () => {
        while (left > 0) {
          const part = CHUNK.subarray(0, Math.min(left, CHUNK.length));
          left -= part.length;
          if (!socket.write(part)) return;
        }
        socket.end();
      };
      socket.on('drain', send);
      send();
    });
  });
  server.listen({ host: address, port, backlog: 128 }, () => process.stdout.write('ready\n'));
}

/** Downloads `bytes` once: `{ bytes, seconds }`. */
function get({ address, port, bytes, seconds, proxy }) {
  return new Promise((resolve, reject) => {
    const begin = performance.now();
    const [host, at] = proxy === undefined ? [address, port] : proxy.split(':');
    const socket = net.connect({ host, port: Number(at), noDelay: true });
    let arrived = 0;
    const finish = () => {
      clearTimeout(cut);
      socket.destroy();
      resolve({ bytes: arrived, seconds: (performance.now() - begin) / 1_000 });
    };
    const cut = setTimeout(finish, 1_000 * seconds);
    const ask = () => {
      const request = Buffer.alloc(8);
      request.writeBigUInt64BE(BigInt(bytes));
      socket.write(request);
      socket.on('data', (part) => {
        arrived += part.length;
        if (arrived >= bytes) finish();
      });
      socket.resume();
    };
    socket.on('error', reject);
    socket.on('end', () => arrived < bytes && reject(new Error(`ended after ${arrived} of ${bytes} bytes`)));
    socket.on('connect', () => (proxy === undefined ? ask() : socks(socket, address, port).then(ask, reject)));
  });
}

/** Asks a SOCKS5 proxy (RFC 1928) for a connection to an IPv4 address. */
async function socks(socket, address, port) {
  const reply = (length) => new Promise((resolve) => {
    const take = () => {
      const part = socket.read(length);
      if (part === null) socket.once('readable', take);
      else resolve(part);
    };
    take();
  });
  socket.write(Buffer.from([5, 1, 0]));
  await reply(2);
  socket.write(Buffer.from([5, 1, 0, 1, ...address.split('.').map(Number), port >> 8, port & 255]));
  const answer = await reply(10);
  if (answer[1] !== 0) throw new Error(`the proxy answers ${answer[1]}`);
}

const [role, address, port, ...rest] = process.argv.slice(2);
if (role === 'serve') {
  serve(address, Number(port));
} else {
  const [bytes, count, seconds] = rest.map(Number);
  for (let done = 0; done < count; done += 1) {
    const got = await get({ address, port: Number(port), bytes, seconds, proxy: rest[3] });
    process.stdout.write(`${JSON.stringify(got)}\n`);
  }
}
