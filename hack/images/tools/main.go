// Command tools is wget, nc and printenv of the stand-in images, by the name it is called with. Debian's busybox
// crashes with wget -T, its nc has neither -u, -v nor -W, and it has no printenv. Calls with other options of wget and
// nc are handed to busybox. Busybox's shell prefers its own applets to programs in PATH: scripts call /bin/wget.
package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
)

// errBusybox means that busybox has to run the command.
var errBusybox = errors.New("not implemented here")

func main() {
	name := filepath.Base(os.Args[0])
	var err error
	switch name {
	case "wget":
		err = wget(os.Args[1:], os.Stdout)
	case "nc":
		err = nc(os.Args[1:], os.Stdin, os.Stdout)
	case "printenv":
		err = printenv(os.Args[1:])
	default:
		err = fmt.Errorf("call this program as wget, nc or printenv")
	}
	if errors.Is(err, errBusybox) {
		err = syscall.Exec("/bin/busybox", append([]string{name}, os.Args[1:]...), os.Environ())
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", name, err)
		os.Exit(1)
	}
}

// printenv prints all variables, or the values of the named ones. It fails if one is not set.
func printenv(names []string) error {
	if len(names) == 0 {
		for _, variable := range os.Environ() {
			fmt.Println(variable)
		}
	}
	var unset error
	for _, name := range names {
		if value, ok := os.LookupEnv(name); ok {
			fmt.Println(value)
		} else {
			unset = fmt.Errorf("%s is not set", name)
		}
	}
	return unset
}
