// Command coracle-buildbarn-check evaluates configurations of Buildbarn, which may be hostile, says what is wrong with
// them, and ends. It is carried inside coracle, which runs it with a request on its standard input
// (pkg/systems/buildbarn/check).
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
