// Command sh is dash under the name it was called by, except that `sh -c env` prints variables such as "data-1" too:
// the shell of upstream's image passes them on, Debian's shells drop them. Where /etc/busybox-shell exists it is
// busybox's shell, because a test reads what busybox says about a read-only file system; for most of the suite that is
// no use, since Debian's static busybox prefers its own applets, such as nc, to those in PATH.
package main

import (
	"fmt"
	"os"
	"slices"
	"syscall"
)

func main() {
	if slices.Equal(os.Args[1:], []string{"-c", "env"}) {
		for _, variable := range os.Environ() {
			fmt.Println(variable)
		}
		return
	}
	shell := "/usr/bin/dash"
	if _, err := os.Stat("/etc/busybox-shell"); err == nil {
		shell = "/bin/busybox"
	}
	fmt.Fprintln(os.Stderr, syscall.Exec(shell, os.Args, os.Environ()))
	os.Exit(126)
}
