//go:build !cgo

package main

import (
	"fmt"
	"os"
)

// main replaces the shim in builds without cgo, so that `go build ./...` works everywhere.
func main() {
	fmt.Fprintln(os.Stderr,
		"coracle-shim was built without cgo, which runc's libcontainer needs: build it with CGO_ENABLED=1")
	os.Exit(1)
}
