//go:build cgo

// Command coracle-shim is the parent process of a pod's containers, so that they outlive the agent. The agent runs
// it; users do not.
//
// "coracle-shim pause" does not start the Go runtime: see pause.go.
//
// Its invariant: it stays small, since there is one per pod.
package main

import (
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"

	"github.com/opencontainers/runc/libcontainer"
	_ "github.com/opencontainers/runc/libcontainer/nsenter" // enters the namespaces before Go starts
	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"

	"github.com/coracle-dev/coracle/pkg/node/runtime/shim/server"
)

func main() {
	mode := ""
	if len(os.Args) == 2 {
		mode = os.Args[1]
	}
	switch mode {
	case "init": // in a container, before its command
		debug.SetGCPercent(-1) // it runs for milliseconds
		libcontainer.Init()
	case "serve":
		runtime.GOMAXPROCS(2)
		debug.SetGCPercent(200) // rare collections while containers start; an idle shim frees its memory
		debug.SetMemoryLimit(32 << 20)
		if err := serve(); err != nil {
			slog.Error("shim failed", "error", err)
			os.Exit(1)
		}
	default:
		fmt.Fprintln(os.Stderr, "coracle-shim is started by the coracle agent, not by hand")
		os.Exit(2)
	}
}

// serve serves the listener in file descriptor 3.
func serve() error {
	logrus.SetOutput(os.Stderr)
	logrus.SetLevel(logrus.WarnLevel)
	// Catch and discard signals instead of ignoring them: containers would inherit ignored signals.
	signal.Notify(make(chan os.Signal, 1), unix.SIGINT, unix.SIGTERM, unix.SIGHUP)
	file := os.NewFile(3, "listener")
	l, err := net.FileListener(file)
	if err != nil {
		return err
	}
	file.Close()
	return server.Serve(l, slog.Default())
}
