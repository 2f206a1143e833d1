package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path"
	"strings"
	"time"

	"github.com/spf13/pflag"
)

// wget downloads a URL if there is a timeout, which applies to the connection and to each read.
func wget(args []string, stdout io.Writer) error {
	flags := pflag.NewFlagSet("wget", pflag.ContinueOnError)
	flags.SetOutput(io.Discard)
	flags.BoolP("quiet", "q", false, "print no progress, which it never does")
	flags.IntP("tries", "t", 1, "ignored: it tries once")
	spider := flags.Bool("spider", false, "print nothing, only check that the URL exists")
	to := flags.StringP("output-document", "O", "",
		`file to write, or "-" for standard output; default the URL's last part`)
	seconds := flags.IntP("timeout", "T", 0, "timeout")
	if err := flags.Parse(args); err != nil || *seconds <= 0 || flags.NArg() != 1 {
		return errBusybox
	}
	url := flags.Arg(0)
	if !strings.Contains(url, "://") {
		url = "http://" + url
	}
	res, err := client(time.Duration(*seconds) * time.Second).Get(url)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return fmt.Errorf("server returned error: HTTP/1.1 %s", res.Status)
	}
	switch {
	case *spider:
		return nil
	case *to == "-":
		_, err = io.Copy(stdout, res.Body)
		return err
	case *to == "":
		if *to = path.Base(res.Request.URL.Path); *to == "/" || *to == "." {
			*to = "index.html"
		}
	}
	file, err := os.Create(*to)
	if err != nil {
		return err
	}
	_, err = io.Copy(file, res.Body)
	return errors.Join(err, file.Close())
}

func client(patience time.Duration) *http.Client {
	dialer := net.Dialer{Timeout: patience}
	dial := func(ctx context.Context, network, address string) (net.Conn, error) {
		c, err := dialer.DialContext(ctx, network, address)
		return impatient{c, patience}, err
	}
	return &http.Client{Transport: &http.Transport{DialContext: dial, Proxy: http.ProxyFromEnvironment}}
}

// impatient is a connection each of whose reads has a timeout.
type impatient struct {
	net.Conn
	patience time.Duration
}

func (c impatient) Read(b []byte) (int, error) {
	if err := c.SetReadDeadline(time.Now().Add(c.patience)); err != nil {
		return 0, err
	}
	return c.Conn.Read(b)
}
