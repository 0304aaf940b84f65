// A SOCKS5 proxy (RFC 1928) without authentication. Under `mptcpize run` its connections to servers
// are MPTCP, which a browser's own cannot be made.
//
//   socks.js PORT       at 127.0.0.1; says when it is ready

import net from 'node:net';

const [GREETING_MAX, REPLY] = [512, [5, 0, 0, 1, 0, 0, 0, 0, 0, 0]];

/** The destination of a request: `{ host, port, length }`; null while there is not enough of it. */
function destination(bytes) {
  const lengths = { 1: 4, 3: 1 + bytes[4], 4: 16 };
  const length = 4 + lengths[bytes[3]] + 2;
  if (!(bytes.length >= length)) return null;
  const address = bytes.subarray(4, length - 2);
  const host = {
    1: () => address.join('.'),
    3: () => address.subarray(1).toString(),
    4: () => address.toString('hex').match(/.{4}/g).join(':'),
  }[bytes[3]]();
  return { host, port: bytes.readUInt16BE(length - 2), length };
}

function serve(client) {
  let [bytes, greeted] = [Buffer.alloc(0), false];
  client.setNoDelay(true);
  client.on('error', () => client.destroy());
  const take = (part) => {
    bytes = Buffer.concat([bytes, part]);
    if (!greeted) {
      if (bytes.length < 2 || bytes.length < 2 + bytes[1]) return;
      greeted = true;
      bytes = bytes.subarray(2 + bytes[1]);
      client.write(Buffer.from([5, 0]));
    }
    const wanted = bytes.length > 4 ? destination(bytes) : null;
    if (wanted === null) {
      if (bytes.length > GREETING_MAX) client.destroy();
      return;
    }
    client.off('data', take).pause();
    connect(client, wanted, bytes.subarray(wanted.length));
  };
  client.on('data', take);
}

function connect(client, { host, port }, early) {
  const server = net.connect({ host, port, noDelay: true });
  server.on('error', () => client.destroy());
  client.on('close', () => server.destroy());
  server.on('connect', () => {
    client.write(Buffer.from(REPLY));
    server.write(early);
    server.pipe(client);
    client.pipe(server);
  });
}

const port = Number(process.argv[2]);
net.createServer(serve).listen(port, '127.0.0.1', () => process.stdout.write('ready\n'));
