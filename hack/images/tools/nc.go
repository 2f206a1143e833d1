package main

import (
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"time"
)

// nc sends its input to a host and port, and prints the answer.
func nc(args []string, stdin io.Reader, stdout io.Writer) error {
	flags := flag.NewFlagSet("nc", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	var udp, verbose, scan, both, closes bool
	flags.Bool("t", false, "TCP, the default")
	flags.BoolVar(&udp, "u", false, "UDP")
	flags.BoolVar(&verbose, "v", false, "say whether it connected")
	flags.BoolVar(&scan, "z", false, "connect only")
	flags.BoolVar(&both, "vz", false, "-v -z")
	flags.BoolVar(&closes, "N", false, "close for writing after the input's end")
	wait := flags.Int("w", 0, "seconds to wait for a connection, and for more to read; 0 waits for ever")
	packets := flags.Int("W", 0, "packets to receive before it exits; 0 for all")
	port := flags.Int("p", 0, "local port; 0 for any")
	if err := flags.Parse(args); err != nil || flags.NArg() != 2 {
		return errBusybox
	}
	network, local := "tcp", net.Addr(&net.TCPAddr{Port: *port})
	if udp {
		network, local = "udp", &net.UDPAddr{Port: *port}
	}
	patience := time.Duration(*wait) * time.Second
	dialer := net.Dialer{Timeout: patience, LocalAddr: local}
	c, err := dialer.Dial(network, net.JoinHostPort(flags.Arg(0), flags.Arg(1)))
	if err != nil {
		return err
	}
	defer c.Close()
	if verbose || both {
		fmt.Fprintf(os.Stderr, "Connection to %s %s port [%s/*] succeeded!\n", flags.Arg(0), flags.Arg(1), network)
	}
	if scan || both {
		return nil
	}
	go func() {
		_, _ = io.Copy(c, stdin)
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
		_, _ = stdout.Write(buffer[:n])
		if err != nil || read == *packets {
			return nil
		}
	}
}
