// Command sh is busybox's shell, but that `sh -c env` shows variables such as "data-1" too: the busybox of upstream's
// image hands them on, Debian's drops them.
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
	fmt.Fprintln(os.Stderr, syscall.Exec("/bin/busybox", append([]string{"/bin/sh"}, os.Args[1:]...), os.Environ()))
	os.Exit(126)
}
