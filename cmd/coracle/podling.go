package main

import (
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/coracle-dev/coracle/pkg/systems/rest/podling"
)

// commandLine returns the command for the name under which the binary was called.
func commandLine() *cobra.Command {
	switch filepath.Base(os.Args[0]) {
	case podling.Name:
		return podling.Command()
	case etcdName:
		return etcdCommand()
	case kubeAPIServer:
		return kubeAPIServerCommand()
	}
	return root()
}
