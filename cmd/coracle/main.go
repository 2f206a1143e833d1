// Command coracle is Kubernetes in one binary: control plane, node agent and command line. Each mode has a file in
// this package, which only turns flags into a configuration and runs the mode.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/coracle-dev/coracle/pkg/cli"
	"github.com/coracle-dev/coracle/pkg/cli/manual"
	"github.com/coracle-dev/coracle/pkg/systems"
	"github.com/coracle-dev/coracle/pkg/systems/command"
)

func main() {
	os.Args = withCtl(os.Args)
	if err := execute(); err != nil {
		exit := &command.Exit{Code: 1, Err: err}
		errors.As(err, &exit)
		if errors.Is(exit.Err, fs.ErrPermission) && os.Geteuid() != 0 {
			exit.Err = fmt.Errorf("%w: only root may do this: use sudo", exit.Err)
		}
		if exit.Err != nil {
			report(exit.Err, os.Stderr, kernelLog)
		}
		os.Exit(exit.Code)
	}
}

// kernelLog is where the kernel takes messages of programs.
const kernelLog = "/dev/kmsg"

// report writes an error. If that fails, as when the log is on a file system that became read-only, it writes to the
// kernel's log instead: otherwise the process would end without a reason anywhere.
func report(err error, to io.Writer, otherwise string) {
	if _, failed := fmt.Fprintln(to, "Error:", err); failed == nil {
		return
	}
	if f, failed := os.OpenFile(otherwise, os.O_WRONLY, 0); failed == nil {
		_, _ = fmt.Fprintf(f, "<3>coracle: %v\n", err)
		_ = f.Close()
	}
}

func execute() error {
	// kubectl has no context: signals kill it, unless it handles them to restore a terminal.
	if len(os.Args) > 1 && os.Args[1] == ctlName {
		return root().Execute()
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	return run(ctx, commandLine(), os.Args[1:])
}

// run executes a command line. For an unknown subcommand Cobra prints the help of its parent and succeeds; here it is
// an error, so that a script with a mistake fails.
func run(ctx context.Context, root *cobra.Command, args []string) error {
	if len(args) > 1 && args[0] == "create" && args[1] == "cluster" {
		return errors.New("this machine has one cluster, which `coracle start` creates: see `coracle help from-kind`")
	}
	c, rest, _ := root.Find(args)
	name := slices.IndexFunc(rest, func(arg string) bool { return !strings.HasPrefix(arg, "-") })
	if name >= 0 && !c.Runnable() && !slices.Contains(rest, "-h") && !slices.Contains(rest, "--help") &&
		!slices.Contains(cobraCommands, rest[name]) {
		return unknownCommand(c, rest[name])
	}
	if len(args) == 0 {
		_, err := fmt.Fprintf(root.OutOrStdout(), "%s\n\n`coracle --help` lists all commands.\n", root.Long)
		return err
	}
	root.SetArgs(args)
	return root.ExecuteContext(ctx)
}

// cobraCommands are commands that Cobra adds when it executes.
var cobraCommands = []string{"help", "completion", cobra.ShellCompRequestCmd, cobra.ShellCompNoDescRequestCmd}

func unknownCommand(c *cobra.Command, name string) error {
	hint := fmt.Sprintf("see `%s --help`", c.CommandPath())
	if like := similar(c, name); len(like) > 0 {
		hint = "did you mean " + strings.Join(like, " or ") + "?"
	} else if m, err := loadManual(c.Root(), systems.All().Pages()); err == nil && !c.HasParent() {
		if pages := m.Titled(name); len(pages) > 0 {
			hint = fmt.Sprintf("see `coracle help %s`, or `coracle --help`", pages[0])
		}
	}
	return fmt.Errorf("%s has no command %q: %s", c.CommandPath(), name, hint)
}

// similar returns the subcommands whose names differ from name by few letters, or by two that are swapped.
func similar(c *cobra.Command, name string) []string {
	c.SuggestionsMinimumDistance = max(len(name)/3, 1)
	like := c.SuggestionsFor(name)
	for i := 1; i < len(name); i++ {
		swapped := name[:i-1] + name[i:i+1] + name[i-1:i] + name[i+1:]
		for _, sub := range c.Commands() {
			if sub.Name() == swapped && sub.IsAvailableCommand() && !slices.Contains(like, swapped) {
				like = append(like, swapped)
			}
		}
	}
	return like
}

// startHints answer options of kind and k3d that `coracle start` does not have.
var startHints = map[string]string{
	"--wait": "`coracle start` returns when the node is Ready",
	"--name": "a machine has one cluster; `coracle help run-in-ci` shows how to have several",
}

func root() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "coracle",
		Short: "Kubernetes small enough to carry",
		Long: `Coracle is Kubernetes small enough to carry: one binary is the control plane,
the node agent and the command line.

  coracle start              start a cluster on this machine, in about a second
  coracle status             what runs here, and whether it is healthy
  coracle get pods -A        kubectl; all of it is "coracle ctl"
  coracle run hi --image busybox:1.36 --wait -- echo hello
                             run a container to its end, as a task
  coracle stop               stop the cluster, and keep its state
  coracle delete             delete the cluster, and clean up the machine

  coracle help expose        a page of the manual, here: how to serve a web page
  coracle help topics        all pages: tutorials, how-to, reference
  coracle help -k ingress    pages and commands with a word`,
		SilenceErrors: true,
		SilenceUsage:  true,
		Version:       versionText(),
	}
	cmd.SetVersionTemplate("{{.Version}}\n")
	// Each command's options are wrapped at the width of the terminal.
	cmd.SetUsageTemplate(strings.ReplaceAll(cmd.UsageTemplate(), "Flags.FlagUsages",
		fmt.Sprintf("Flags.FlagUsagesWrapped %d", usageWidth())))
	help := cmd.HelpFunc()
	cmd.SetHelpFunc(func(c *cobra.Command, args []string) {
		c.Long = manual.Wrap(c.Long, usageWidth())
		help(c, args)
	})
	cmd.SetFlagErrorFunc(func(c *cobra.Command, err error) error {
		path := c.CommandPath()
		if path == "coracle run" {
			return fmt.Errorf("%w: see `coracle run --help`; the container's command stands after --, with its own flags; "+
				"kubectl's command is `coracle ctl run`", err)
		}
		if hint := startHints[strings.TrimPrefix(err.Error(), "unknown flag: ")]; path == "coracle start" && hint != "" {
			return fmt.Errorf("%w: %s", err, hint)
		}
		if slices.Contains(kubectlToo, path) {
			return fmt.Errorf("%w: see `%s --help`; kubectl's command is `coracle ctl %s`", err, path, c.Name())
		}
		return fmt.Errorf("%w: see `%s --help`", err, path)
	})
	cmd.AddGroup(
		&cobra.Group{ID: "machine", Title: "This machine:"},
		&cobra.Group{ID: "cluster", Title: "The cluster:"},
		&cobra.Group{ID: "process", Title: "In the foreground, for systemd:"},
	)
	add := func(group string, commands ...*cobra.Command) {
		for _, c := range commands {
			c.GroupID = group
			cmd.AddCommand(c)
		}
	}
	add("machine", startCommand(), stopCommand(), statusCommand(), supportCommand(), deleteCommand(), imageCommand(),
		certsCommand(), encryptionCommand(), snapshotCommand())
	add("cluster", nodeCommand(), ctlCommand(), nodesCommand(), tokenCommand(), exportCommand())
	agent := agentCommand()
	all := systems.All()
	for _, s := range all {
		add("cluster", s.Commands...)
		agent.AddCommand(s.AgentCommands...)
	}
	add("process", serverCommand(), agent)
	add("process", schedulerCommand(), controllersCommand(), operatorCommand(all))
	add("machine", envtestCommand())
	cmd.AddCommand(versionCommand())
	cmd.SetHelpCommand(helpCommand(all.Pages()))
	return cmd
}

func nodesCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "nodes",
		Short: "List nodes, with their pods' requests and the use of disks",
		Long: `List nodes. CPU and MEMORY are what their pods request, of how much. DISK is what is used of the file system of
the node's data directory. With -o wide, IMAGES is the share of the unpacked images. Both are absent for a node that
does not answer within 5 s, and for users who may not get nodes/proxy. "coracle top nodes" shows the CPU and memory in
use.`,
		Args: command.Exactly(0, "[-o wide|json]"),
	}
	output := cmd.Flags().StringP("output", "o", "", "wide, with addresses, images and tasks, or json, for programs")
	command.Connector{}.OnCluster(cmd, func(ctx context.Context, c *command.Cluster, _ []string) error {
		return cli.Nodes(ctx, c, *output, os.Stdout)
	})
	return cmd
}
