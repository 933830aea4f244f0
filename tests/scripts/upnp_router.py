#!/usr/bin/env python3
"""A home router's UPnP service (Internet Gateway Device 1): finds out who asks for forwarded ports, and forwards them.

usage: upnp_router.py INSIDE-ADDRESS OUTSIDE-ADDRESS

Runs in the router's network namespace, whose nftables table `home` translates addresses. Prints `ready`, and ends when its
standard input does.
"""

import re
import socket
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

INSIDE, OUTSIDE = sys.argv[1:]
PORT = 5000
SERVICE = "urn:schemas-upnp-org:service:WANIPConnection:1"
ACTIONS = ["GetExternalIPAddress", "AddPortMapping", "DeletePortMapping"]
# Names of the arguments, which clients look up before they ask.
ARGUMENTS = {
    "AddPortMapping": [
        "NewRemoteHost", "NewExternalPort", "NewProtocol", "NewInternalPort", "NewInternalClient", "NewEnabled",
        "NewPortMappingDescription", "NewLeaseDuration",
    ],
    "DeletePortMapping": ["NewRemoteHost", "NewExternalPort", "NewProtocol"],
}

DEVICE = f"""<?xml version="1.0"?><root xmlns="urn:schemas-upnp-org:device-1-0"><device>
<deviceType>urn:schemas-upnp-org:device:InternetGatewayDevice:1</deviceType><deviceList><device>
<deviceType>urn:schemas-upnp-org:device:WANDevice:1</deviceType><deviceList><device>
<deviceType>urn:schemas-upnp-org:device:WANConnectionDevice:1</deviceType><serviceList><service>
<serviceType>{SERVICE}</serviceType><serviceId>urn:upnp-org:serviceId:WANIPConn1</serviceId>
<SCPDURL>/service.xml</SCPDURL><controlURL>/control</controlURL><eventSubURL>/event</eventSubURL>
</service></serviceList></device></deviceList></device></deviceList></device></root>"""


def description():
    argument = lambda name: f"<argument><name>{name}</name><direction>in</direction></argument>"
    arguments = lambda action: "".join(map(argument, ARGUMENTS.get(action, [])))
    action = lambda name: f"<action><name>{name}</name><argumentList>{arguments(name)}</argumentList></action>"
    actions = "".join(map(action, ACTIONS))
    return f'<?xml version="1.0"?><scpd xmlns="urn:schemas-upnp-org:service-1-0"><actionList>{actions}</actionList></scpd>'


def nft(rule):
    subprocess.run(["nft", *rule.split()], check=True)


class Control(BaseHTTPRequestHandler):
    def do_GET(self):
        self.answer(DEVICE if self.path == "/device.xml" else description())

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"])).decode()
        action = re.search(r"#(\w+)", self.headers["SOAPAction"]).group(1)
        value = lambda name: re.search(rf"<{name}[^>]*>([^<]*)<", body).group(1)
        result = ""
        if action == "GetExternalIPAddress":
            result = f"<NewExternalIPAddress>{OUTSIDE}</NewExternalIPAddress>"
        elif action == "AddPortMapping":
            client = f"{value('NewInternalClient')}:{value('NewInternalPort')}"
            arriving = f"{value('NewProtocol').lower()} dport {value('NewExternalPort')}"
            nft(f"add rule ip home entering iifname eth0 {arriving} dnat to {client}")
        self.answer(
            '<?xml version="1.0"?><s:Envelope xmlns:s="http://schemas.xmlsoap.org/soap/envelope/"><s:Body>'
            f'<u:{action}Response xmlns:u="{SERVICE}">{result}</u:{action}Response></s:Body></s:Envelope>'
        )

    def answer(self, text):
        body = text.encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/xml")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


def answer_searches(searches):
    """Simple Service Discovery Protocol: who searches for a gateway is told where its description lies."""
    while True:
        query, asker = searches.recvfrom(2048)
        if query.startswith(b"M-SEARCH"):
            target = re.search(rb"(?im)^ST: *(\S+)", query).group(1).decode()
            lines = ["HTTP/1.1 200 OK", f"LOCATION: http://{INSIDE}:{PORT}/device.xml", f"ST: {target}", "EXT:", "", ""]
            searches.sendto("\r\n".join(lines).encode(), asker)


def main():
    nft("add chain ip home entering { type nat hook prerouting priority -100 ; }")
    nft("add rule ip home passing ct status dnat accept")
    searches = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    searches.bind(("", 1900))
    group = socket.inet_aton("239.255.255.250") + socket.inet_aton(INSIDE)
    searches.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, group)
    server = HTTPServer((INSIDE, PORT), Control)
    for work in [lambda: answer_searches(searches), server.serve_forever]:
        threading.Thread(target=work, daemon=True).start()
    print("ready", flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
