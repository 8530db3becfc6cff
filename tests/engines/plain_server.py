"""A server for lease tests: answers /health after a delay; may ignore SIGTERM, fail, or leave a worker behind."""

import argparse
import http.server
import signal
import subprocess
import sys
import time


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_):
        pass


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--startup-s", type=float, default=0.0)
    parser.add_argument("--ignore-term", action="store_true")
    parser.add_argument("--fail", action="store_true")
    parser.add_argument("--worker", action="store_true", help="start a process in its own session")
    options = parser.parse_args()
    if options.fail:
        print("scripted failure: no such weights", flush=True)
        sys.exit(7)
    if options.ignore_term:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if options.worker:
        worker = subprocess.Popen(["sleep", "300"], start_new_session=True)
        print(f"worker {worker.pid}", flush=True)
    time.sleep(options.startup_s)
    http.server.ThreadingHTTPServer(("127.0.0.1", options.port), Handler).serve_forever()


if __name__ == "__main__":
    main()
