// Command coracle-buildbarn-check evaluates Buildbarn configurations, which may be hostile, reports their errors,
// and exits. coracle embeds it and runs it with a request on standard input (pkg/systems/buildbarn/check).
package main

import (
	"fmt"
	"os"

	"github.com/coracle-dev/coracle/pkg/systems/buildbarn/check/program"
)

func main() {
	err := program.Limit()
	if err == nil {
		err = program.Run(os.Stdin, os.Stdout)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "coracle-buildbarn-check:", err)
		os.Exit(1)
	}
}
