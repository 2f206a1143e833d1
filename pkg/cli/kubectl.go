// Package cli is the command line: kubectl, and Coracle's own commands for a cluster (run, ps, nodes, logs) and for
// this machine's process (status, image). Its invariant: a command prints its result on standard output and everything
// else on standard error.
package cli

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"

	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	_ "k8s.io/client-go/plugin/pkg/client/auth" // auth plugins that a kubeconfig may use
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/component-base/cli"
	"k8s.io/component-base/logs"
	component "k8s.io/component-base/version"
	"k8s.io/kubectl/pkg/cmd"
	cmdutil "k8s.io/kubectl/pkg/cmd/util"

	"github.com/coracle-dev/coracle/pkg/base/version"
	_ "github.com/coracle-dev/coracle/pkg/cli/locale" // must be initialised before kubectl's packages
	"github.com/coracle-dev/coracle/pkg/systems/command"
)

// Kubectl runs kubectl with args, without the program name. On failure it exits the process. It replaces os.Args,
// which kubectl and its libraries also read.
func Kubectl(args []string) {
	// --match-server-version compares with this version. The call fails in a build without kubectl's version.
	_ = component.SetDynamicVersion(version.Info().GitVersion)
	check := &checked{fatal: func(err error) {
		fmt.Fprintln(os.Stderr, "Error:", err)
		os.Exit(1)
	}}
	k := kubectl(args, genericiooptions.IOStreams{In: os.Stdin, Out: os.Stdout, ErrOut: os.Stderr}, check)
	if c, _, err := k.Find(args); err == nil && c.Name() == "version" {
		check.fatal = nil // it prints kubectl's version first
	}
	if err := cli.RunNoErrOutput(k); err != nil {
		cmdutil.CheckErr(err)
	}
}

// CompleteKubectl returns shell completions for the last of args. It replaces os.Args.
func CompleteKubectl(ctx context.Context, args []string) ([]string, cobra.ShellCompDirective) {
	var out bytes.Buffer
	streams := genericiooptions.IOStreams{In: os.Stdin, Out: &out, ErrOut: &bytes.Buffer{}}
	k := kubectl(append([]string{cobra.ShellCompRequestCmd}, args...), streams, &checked{})
	k.SetOut(&out)
	k.SetErr(streams.ErrOut)
	if err := k.ExecuteContext(ctx); err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	last := lines[len(lines)-1]
	directive, err := strconv.Atoi(strings.TrimPrefix(last, ":"))
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	return lines[:len(lines)-1], cobra.ShellCompDirective(directive)
}

// kubectl builds the command. As upstream, it takes its arguments only from os.Args: kuberc's aliases set the
// command's arguments during construction, and SetArgs would undo that.
func kubectl(args []string, streams genericiooptions.IOStreams, check *checked) *cobra.Command {
	started := os.Args[0]
	os.Args = append([]string{"kubectl"}, args...)
	// Set the log level before parsing flags, so that -v applies to plugins and kuberc.
	_, _ = logs.GlogSetter(cmd.GetLogVerbosity(os.Args))
	flags := genericclioptions.NewConfigFlags(true).WithDeprecatedPasswordFlag().
		WithDiscoveryBurst(-1).WithDiscoveryQPS(-1).WithWarningPrinter(streams).WithWrapConfigFn(check.configure)
	check.server = flags.APIServer
	root := cmd.NewDefaultKubectlCommandWithArgs(cmd.KubectlOptions{
		PluginHandler: newPlugins(started),
		Arguments:     os.Args,
		ConfigFlags:   flags,
		IOStreams:     streams,
	})
	root.AddCommand(inspectCommand(flags, streams))
	return root
}

// checked makes kubectl check before its first request whether there is a cluster.
type checked struct {
	// fatal, unless it is nil, ends the process with an error. Otherwise the request fails: then most commands retry
	// several times, log each attempt, and guess at the cause.
	fatal func(error)
	// server is the value of --server. If the user chose the address that client-go has by default, nothing is checked.
	server *string
	once   sync.Once
	err    error
}

// configure adds the check to a client. It disables client-side rate limiting, which makes deleting 300 objects take a
// minute.
func (c *checked) configure(config *rest.Config) *rest.Config {
	config.QPS = -1
	config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(r *http.Request) (*http.Response, error) {
			c.once.Do(func() {
				if *c.server != clientcmd.ClusterDefaults.Server {
					c.err = command.Check(config)
				}
			})
			if c.err != nil && c.fatal != nil {
				c.fatal(c.err)
			}
			if c.err != nil {
				return nil, c.err
			}
			return next.RoundTrip(r)
		})
	})
	return config
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }
