// Command wget implements wget's -q, -O and -T. Debian's static busybox crashes with -T.
package main

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"path"
	"strings"
	"time"

	"github.com/spf13/pflag"
)

func main() {
	pflag.BoolP("quiet", "q", false, "print no progress, which is what it does anyway")
	to := pflag.StringP("output-document", "O", "", `file to write, or "-" for standard output; default the URL's last part`)
	timeout := pflag.IntP("timeout", "T", 0, "seconds to wait for the response; 0 waits for ever")
	pflag.Parse()
	if pflag.NArg() != 1 {
		fmt.Fprintln(os.Stderr, "usage: wget [-q] [-O FILE] [-T SECONDS] URL")
		os.Exit(1)
	}
	if err := get(pflag.Arg(0), *to, time.Duration(*timeout)*time.Second); err != nil {
		fmt.Fprintln(os.Stderr, "wget:", err)
		os.Exit(1)
	}
}

func get(url, to string, timeout time.Duration) error {
	if !strings.Contains(url, "://") {
		url = "http://" + url
	}
	res, err := (&http.Client{Timeout: timeout}).Get(url)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return fmt.Errorf("server returned error: HTTP/1.1 %s", res.Status)
	}
	out := os.Stdout
	if to != "-" {
		if to == "" {
			to = path.Base(res.Request.URL.Path)
		}
		if to == "/" || to == "." {
			to = "index.html"
		}
		if out, err = os.Create(to); err != nil {
			return err
		}
		defer out.Close()
	}
	_, err = io.Copy(out, res.Body)
	return err
}
