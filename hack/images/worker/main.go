// Command worker is the program of the image coracle/worker: it serves the built-in function named in WORKER_FUNCTION.
package main

import (
	"fmt"
	"os"

	"github.com/coracle-dev/coracle/pkg/systems/workers/function"
	"github.com/coracle-dev/coracle/pkg/systems/workers/worker"
)

func main() {
	name := os.Getenv("WORKER_FUNCTION")
	h, err := function.New(name, function.Config{Parameters: worker.Parameters(), Log: os.Stdout})
	if err != nil {
		fmt.Fprintln(os.Stderr, "worker:", err)
		os.Exit(1)
	}
	fmt.Println("serving function", name)
	worker.Main(h)
}
