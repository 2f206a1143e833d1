// Command nc implements the part of netcat that the conformance suite uses: it sends its input and prints the
// answer, and -w limits the waiting, in seconds. Debian's busybox nc has neither -u, -v nor -W.
package main

import (
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"time"
)

func main() {
	var tcp, udp, verbose, scan, both, closes bool
	flag.BoolVar(&tcp, "t", false, "TCP, which is what it does anyway")
	flag.BoolVar(&udp, "u", false, "UDP")
	flag.BoolVar(&verbose, "v", false, "say whether it connected")
	flag.BoolVar(&scan, "z", false, "connect only")
	flag.BoolVar(&both, "vz", false, "-v -z")
	flag.BoolVar(&closes, "N", false, "close for writing after the input's end")
	wait := flag.Int("w", 0, "seconds to wait for a connection, and for more to read; 0 waits for ever")
	packets := flag.Int("W", 0, "packets to receive before it exits; 0 for all")
	port := flag.Int("p", 0, "local port; 0 for any")
	flag.Parse()
	if flag.NArg() != 2 {
		fmt.Fprintln(os.Stderr, "usage: nc [-tuvzN] [-w SECONDS] [-W PACKETS] [-p LOCAL-PORT] HOST PORT")
		os.Exit(2)
	}
	network, local := "tcp", net.Addr(&net.TCPAddr{Port: *port})
	if udp {
		network, local = "udp", &net.UDPAddr{Port: *port}
	}
	patience := time.Duration(*wait) * time.Second
	dialer := net.Dialer{Timeout: patience, LocalAddr: local}
	c, err := dialer.Dial(network, net.JoinHostPort(flag.Arg(0), flag.Arg(1)))
	if err != nil {
		fmt.Fprintln(os.Stderr, "nc:", err)
		os.Exit(1)
	}
	if verbose || both {
		fmt.Fprintf(os.Stderr, "Connection to %s %s port [%s/*] succeeded!\n", flag.Arg(0), flag.Arg(1), network)
	}
	if scan || both {
		return
	}
	go func() {
		_, _ = io.Copy(c, os.Stdin)
		if t, ok := c.(*net.TCPConn); ok && closes {
			_ = t.CloseWrite()
		}
	}()
	buffer := make([]byte, 64<<10)
	for read := 1; ; read++ {
		if patience > 0 {
			_ = c.SetReadDeadline(time.Now().Add(patience))
		}
		n, err := c.Read(buffer)
		_, _ = os.Stdout.Write(buffer[:n])
		if err != nil || read == *packets {
			return
		}
	}
}
