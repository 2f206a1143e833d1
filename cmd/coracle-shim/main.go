// Command coracle-shim is the small process that holds a pod's containers,
// so that they outlive the agent. Users do not run it: the agent does.
//
// "coracle-shim pause" never gets as far as Go: see pause.go.
//
// It may import agent/runtime/shim/server alone. Its invariant: it stays
// small, as there is one of it per pod.
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

	"github.com/coracle-dev/coracle/pkg/agent/runtime/shim/server"
)

func main() {
	mode := ""
	if len(os.Args) == 2 {
		mode = os.Args[1]
	}
	switch mode {
	case "init": // the inside of a container, before its own command
		debug.SetGCPercent(-1) // it lives for milliseconds
		libcontainer.Init()
	case "serve":
		runtime.GOMAXPROCS(2)
		debug.SetGCPercent(200) // few collections while containers start; all is given back when it is quiet
		debug.SetMemoryLimit(32 << 20)
		if err := serve(); err != nil {
			slog.Error("the shim ends", "error", err)
			os.Exit(1)
		}
	default:
		fmt.Fprintln(os.Stderr, "coracle-shim is started by the coracle agent, not by hand")
		os.Exit(2)
	}
}

// serve takes its listener as file descriptor 3.
func serve() error {
	logrus.SetOutput(os.Stderr)
	logrus.SetLevel(logrus.WarnLevel)
	// Caught and dropped, not ignored: containers would inherit that they are ignored.
	signal.Notify(make(chan os.Signal, 1), unix.SIGINT, unix.SIGTERM, unix.SIGHUP)
	file := os.NewFile(3, "listener")
	l, err := net.FileListener(file)
	if err != nil {
		return err
	}
	file.Close()
	return server.Serve(l, slog.Default())
}
