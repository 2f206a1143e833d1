package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/client-go/tools/clientcmd"

	config "github.com/coracle-dev/coracle/apis/config/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/cli/socket"
	"github.com/coracle-dev/coracle/pkg/server"
	"github.com/coracle-dev/coracle/pkg/systems/command"
)

func startCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:        "start",
		SuggestFor: []string{"up"},
		Short:      "Start a cluster on this machine, in the background",
		Long: `Starts the control plane and the node in one background process and returns once the node is Ready.
It is idempotent. Containers that are still running from an earlier run are adopted.`,
		Args: command.Exactly(0, ""),
	}
	load, flags := configure(cmd, config.ServerPart, config.AgentPart), cmd.Flags()
	verbose := flags.BoolP("verbose", "v", false, "show each component as it starts, with the time that it took")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		c, err := load()
		if err != nil {
			return err
		}
		self, err := os.Executable()
		if err != nil {
			return err
		}
		child := exec.Command(self, "server")
		flags.Visit(func(f *pflag.Flag) {
			if f.Name != "verbose" {
				child.Args = append(child.Args, flagArgs(f)...)
			}
		})
		began := time.Now()
		status, err := server.Start(cmd.Context(), c, child, startProgress(*verbose, terminalWidth() > 0))
		if terminalWidth() > 0 {
			fmt.Print("\r\x1b[K")
		}
		if err != nil && cmd.Context().Err() != nil {
			return errors.New("the start was interrupted, and no cluster runs: `coracle start` starts it again")
		}
		if err != nil {
			return err
		}
		if began.Before(*status.StartedAt) {
			fmt.Printf("Node %s is Ready after %s.\n", status.Node, time.Since(began).Round(time.Millisecond))
		} else {
			fmt.Printf("Coracle is already running, with pid %d.\n", status.PID)
		}
		fmt.Printf("\n  API         %s\n  kubeconfig  %s\n", status.Server, status.Kubeconfig)
		if c.MergeKubeconfig && isMerged() {
			fmt.Printf("              and context %q in your ~/.kube/config\n", server.Context)
			fmt.Print(overridden(os.Getenv("KUBECONFIG"), clientcmd.RecommendedHomeFile))
		}
		for _, pressure := range status.Pressure {
			fmt.Printf("\nPods may not start: the node has %s\n", pressure)
		}
		fmt.Print("\nTry: coracle ctl get pods -A -o wide\n")
		return nil
	}
	return cmd
}

// isMerged reports whether the user's kubeconfig has the context: a process that runs already may not have written it.
func isMerged() bool {
	c, err := clientcmd.LoadFromFile(clientcmd.RecommendedHomeFile)
	return err == nil && c.Contexts[server.Context] != nil
}

// overridden returns a note if the variable KUBECONFIG makes kubectl and `coracle ctl` ignore the user's kubeconfig.
func overridden(variable, file string) string {
	if variable == "" || slices.Contains(filepath.SplitList(variable), file) {
		return ""
	}
	return fmt.Sprintf("              which is not read while KUBECONFIG=%s: unset it, or add %s to it\n", variable, file)
}

// slowStep is the shortest start of a component that is shown without --verbose.
const slowStep = time.Second

// startProgress prints the components that have started: all if verbose, else the slow ones. On a terminal, a line
// that the next one overwrites shows the latest.
func startProgress(verbose, terminal bool) func(socket.Event) {
	return func(e socket.Event) {
		line := strings.TrimRight(fmt.Sprintf("  %-15s %8s  %s", e.Step, e.Took.Round(100*time.Microsecond), e.Message), " ")
		switch {
		case verbose || e.Took >= slowStep:
			if terminal {
				fmt.Print("\r\x1b[K")
			}
			fmt.Println(line)
		case terminal:
			fmt.Print("\r\x1b[K", line)
		}
	}
}

func flagArgs(f *pflag.Flag) (args []string) {
	if list, ok := f.Value.(pflag.SliceValue); ok {
		for _, v := range list.GetSlice() {
			args = append(args, "--"+f.Name+"="+v)
		}
		return args
	}
	return []string{"--" + f.Name + "=" + f.Value.String()}
}

func serverCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "server",
		Short: "Run the control plane and this machine as a node",
		Args:  command.Exactly(0, ""),
	}
	load := configure(cmd, config.ServerPart, config.AgentPart)
	noNode := cmd.Flags().Bool("no-node", false, "run the control plane only")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		c, err := load()
		if err != nil {
			return err
		}
		return server.RunServer(cmd.Context(), c, !*noNode)
	}
	return cmd
}

func agentCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "agent",
		Short: "Run this machine as a node of a cluster",
		Long: `Runs this machine as a node of the cluster at --join. The first time it needs a join token, created
with "coracle token create" on the server; afterwards it authenticates with its own certificate,
until its node is deleted. Pass the token in a file (--token-file), in CORACLE_TOKEN or on standard
input (--token -): arguments are visible in the process list.`,
		Args: command.Exactly(0, "--join URL [--token-file FILE]"),
	}
	load := configure(cmd, config.JoinPart, config.AgentPart)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		c, err := load()
		if err != nil {
			return err
		}
		if cmd.Flags().Changed("token") && c.Token != "-" {
			fmt.Fprintln(os.Stderr,
				"Warning: a token passed with --token is visible in the process list: use --token-file, CORACLE_TOKEN or --token "+
					"- instead.")
		}
		if err := readToken(&c, os.Stdin); err != nil {
			return err
		}
		return server.RunAgent(cmd.Context(), c)
	}
	return cmd
}
