// Command sh is dash under its own name, except that `sh -c env` also prints variables such as "data-1": the shell
// of upstream's image passes them on, Debian's shells drop them. If /etc/busybox-shell exists, it is busybox's
// shell, because a test reads busybox's error for a read-only file system. The rest of the suite cannot use that
// shell: Debian's static busybox prefers its own applets, such as nc, to programs in PATH.
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
