// Package commands is the command line of tasks. Its invariant: a wait that ends early leaves its task running, and
// says so.
package commands

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime/pkg/client"

	tasks "github.com/coracle-dev/coracle/apis/tasks/v1alpha1"
	workers "github.com/coracle-dev/coracle/apis/workers/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/base/count"
	"github.com/coracle-dev/coracle/pkg/systems/command"
)

// commands are the commands of tasks. Each is directly below coracle, as Podling's users expect.
type commands struct{ command.Connector }

// New returns the commands of tasks. kinds are the API resources of the system.
func New(kinds []metav1.APIResource) []*cobra.Command {
	k := commands{command.Connector{Kinds: kinds}}
	return []*cobra.Command{k.run(), k.ps(), k.logs(), k.cancel(), k.prune(), k.task()}
}

const taskKind = "task"

func taskList() ctrl.ObjectList { return &tasks.TaskList{} }

type cluster struct{ *command.Cluster }

func (k commands) onCluster(cmd *cobra.Command, f func(ctx context.Context, c cluster, args []string) error) {
	k.OnCluster(cmd, func(ctx context.Context, c *command.Cluster, args []string) error {
		return f(ctx, cluster{c}, args)
	})
}

const runUsage = "coracle run NAME --image IMAGE [--wait] [-- ARGS...]"

func (k commands) run() *cobra.Command {
	var o RunOptions
	cmd := &cobra.Command{
		Use:        "run NAME --image IMAGE [--wait] [-- ARGS...]",
		Short:      "Run a container to completion, as a task",
		SuggestFor: []string{"cron", "schedule"},
		Example: `  coracle run hello --image busybox:1.36 --wait -- echo hello
  coracle run build --image busybox:1.36 --retries 3 --timeout 10m --cpu 500m --memory 64Mi -- make
  coracle run render --image busybox:1.36 --array 100 --parallelism 8 -- sh -c 'echo frame $TASK_INDEX'
  coracle run backup --image busybox:1.36 --schedule "0 3 * * *" --time-zone Europe/Paris -- echo done
  coracle run resize --image busybox:1.36 --template --param FILE --param SIZE=100 -- echo '$(FILE) to $(SIZE)'
  coracle run --from resize --arg FILE=a.png --wait`,
		Args: func(cmd *cobra.Command, args []string) error {
			named := len(args)
			if dash := cmd.ArgsLenAtDash(); dash >= 0 {
				named = dash
			}
			switch {
			case o.From != "":
				if err := onlyFrom(cmd); err != nil {
					return err
				}
				if named > 1 || len(args) > named {
					return errors.New("usage: coracle run [NAME] --from TEMPLATE [--arg NAME=value...] [--wait]")
				}
			case len(o.Arguments) > 0:
				return errors.New("--arg is for the parameters of a template: add --from TEMPLATE")
			case named > 1:
				return fmt.Errorf("unexpected argument %q: put the container's command after --; usage: %s", args[1], runUsage)
			case named == 0 && o.Key == "":
				return errors.New("the task's name is missing; usage: " + runUsage)
			case o.Image == "":
				return errors.New("--image is missing; usage: " + runUsage)
			case o.Array < 0, o.Parallelism < 0:
				return errors.New("--array and --parallelism must be positive")
			case cmd.Flags().Changed("ttl") && o.TTL < 0, cmd.Flags().Changed("backoff") && o.Backoff < 0:
				return errors.New("--ttl and --backoff must not be negative")
			}
			if named == 1 {
				o.Name, o.Command = args[0], args[1:]
			} else {
				o.Command = args
			}
			return nil
		},
	}
	runFlags(cmd.Flags(), &o)
	k.onCluster(cmd, func(ctx context.Context, c cluster, _ []string) error { return c.Run(ctx, o, command.Standard()) })
	return cmd
}

func runFlags(f *pflag.FlagSet, o *RunOptions) {
	f.StringVar(&o.Image, "image", "", "container image")
	f.StringArrayVarP(&o.Env, "env", "e", nil, "environment, NAME=value; may be repeated")
	f.StringArrayVarP(&o.Ports, "publish", "p", nil, "publish a port on the node, HOST:CONTAINER[/udp]; may be repeated")
	f.StringVar(&o.CPU, "cpu", "", "processors, requested and limited, such as 500m")
	f.StringVar(&o.Memory, "memory", "", "memory, requested and limited, such as 64Mi")
	f.StringVar(&o.WorkingDir, "workdir", "", "working directory in the container")
	f.StringVar(&o.Node, "node", "", "run on this node")
	f.StringVar(&o.Priority, "priority", "", "the PriorityClass of the task")
	f.Int32Var(&o.Retries, "retries", 0, "further attempts after a failed one, with growing pauses")
	f.DurationVar(&o.Backoff, "backoff", -1*time.Nanosecond,
		"the pause before the first retry, which doubles with each (default 1s)")
	f.DurationVar(&o.Timeout, "timeout", 0, "stop an attempt that runs longer, such as 10m")
	f.DurationVar(&o.ScheduleTimeout, "schedule-timeout", 0, "fail if no node is feasible within this time")
	f.DurationVar(&o.StartTimeout, "start-timeout", 0,
		"fail if the container cannot be created within this time, for example because of its image (default 20s)")
	f.DurationVar(&o.StopTimeout, "stop-timeout", 0,
		"kill a container that is stopped and has not ended within this time (default 30s)")
	f.DurationVar(&o.TTL, "ttl", -1*time.Nanosecond,
		"delete the task, with its output, this long after it has ended (default never)")
	f.Int32Var(&o.Array, "array", 0, "run it for each index from 0 to this number less 1, which is in TASK_INDEX")
	f.Int32Var(&o.Parallelism, "parallelism", 0, "indexes of the array that run at a time (default 10)")
	f.StringVar(&o.Schedule, "schedule", "",
		"run it again and again, at the times of this cron line, such as \"0 3 * * *\"")
	f.StringVar(&o.TimeZone, "time-zone", "", "the time zone of the schedule (default the server's)")
	f.StringVar(&o.Key, "idempotency-key", "", "run only once for this key, which takes the place of NAME")
	f.StringArrayVarP(&o.Volumes, "volume", "v", nil,
		"mount a claim (CLAIM:PATH), a path of the node (/NODE/PATH:PATH), both with an optional :ro, or an empty "+
			"directory (PATH); may be repeated")
	f.StringVar(&o.Output, "output-path", "", "keep the files below this directory of the container (see task cp)")
	f.StringVar(&o.Account, "service-account", "", "the ServiceAccount whose token the container gets (default no token)")
	f.StringArrayVar(&o.After, "after", nil,
		"start only after this task has succeeded: TASK, TASK:failed or TASK:ended; may be repeated")
	f.BoolVar(&o.EveryNode, "every-node", false, "run it once on each node")
	f.BoolVar(&o.Template, "template", false, "do not run it now; \"coracle run --from NAME\" does")
	f.StringArrayVar(&o.Parameters, "param", nil,
		"a parameter of the template or schedule, NAME or NAME=DEFAULT: a variable of the environment; may be repeated")
	f.StringVar(&o.From, "from", "", "run the task of this template or schedule now")
	f.StringArrayVar(&o.Arguments, "arg", nil, "a value for a parameter of --from, NAME=value; may be repeated")
	f.BoolVar(&o.Wait, "wait", false, "show the output until the task has ended, and exit with its exit code")
	f.BoolVar(&o.Remove, "rm", false, "delete the task after it has ended")
	f.Lookup("ttl").DefValue, f.Lookup("backoff").DefValue = "0s", "0s" // hidden from the usage text
}

func (k commands) ps() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "ps",
		Short: "List unfinished tasks",
		Args:  command.Exactly(0, "[-a] [-w] [--task NAME]"),
	}
	task := cmd.Flags().String("task", "", "show one task in detail")
	all := cmd.Flags().BoolP("all", "a", false, "also list ended tasks")
	watch := cmd.Flags().BoolP("watch", "w", false, "print a line for each change")
	k.onCluster(cmd, func(ctx context.Context, c cluster, _ []string) error {
		names, err := k.Names([]string{*task}, taskKind)
		switch {
		case err != nil:
			return err
		case *task != "":
			return c.Task(ctx, names[0], os.Stdout)
		case *watch:
			return c.WatchTasks(ctx, *all, command.Standard())
		}
		return c.Tasks(ctx, *all, command.Standard())
	})
	k.CompleteFlag(cmd, "task", taskList)
	return cmd
}

func (k commands) logs() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "logs TASK",
		Short: "Print the output of a task",
		Args:  command.Exactly(1, "TASK [-f] [--tail N] [--attempt N] [--index N] [-c CONTAINER]"),
	}
	var o LogOptions
	cmd.Flags().BoolVarP(&o.Follow, "follow", "f", false, "follow the output until the attempt ends")
	cmd.Flags().Int64Var(&o.Tail, "tail", -1, "the number of lines from the end (default all)")
	cmd.Flags().Int32Var(&o.Attempt, "attempt", 0, "the number of the attempt (default the last)")
	cmd.Flags().Int32Var(&o.Index, "index", -1, "the index in an array; required for arrays")
	cmd.Flags().StringVarP(&o.Container, "container", "c", "", "an init container or sidecar (default the task's own)")
	cmd.Flags().Lookup("tail").DefValue, cmd.Flags().Lookup("index").DefValue = "0", "0" // hidden from the usage text
	k.onCluster(cmd, func(ctx context.Context, c cluster, args []string) error {
		if cmd.Flags().Changed("tail") && o.Tail < -1 || cmd.Flags().Changed("attempt") && o.Attempt < 1 {
			return errors.New("--tail and --attempt must be positive")
		}
		names, err := k.Names(args, taskKind)
		if err != nil {
			pods := args[0]
			if kind, name, _ := strings.Cut(pods, "/"); kind == "worker" || kind == "workers" {
				pods = "-l " + workers.LabelWorker + "=" + name
			}
			return fmt.Errorf("%w; the logs of pods are in `coracle ctl logs %s`", err, pods)
		}
		return c.Logs(ctx, names[0], o, os.Stdout)
	})
	k.Complete(cmd, 1, taskList)
	return cmd
}

func (k commands) cancel() *cobra.Command {
	cmd := &cobra.Command{Use: "cancel TASK...", Short: "Cancel tasks", Args: command.AtLeast(1, "TASK...")}
	k.onCluster(cmd, func(ctx context.Context, c cluster, args []string) error {
		names, err := k.Names(args, taskKind)
		if err != nil {
			return err
		}
		return c.Cancel(ctx, names, func(format string, args ...any) { fmt.Printf(format, args...) })
	})
	k.Complete(cmd, 0, taskList)
	return cmd
}

func (k commands) prune() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "prune",
		Short: "Delete the ended tasks with their output",
		Args:  command.Exactly(0, ""),
	}
	k.onCluster(cmd, func(ctx context.Context, c cluster, _ []string) error {
		n, err := c.Prune(ctx)
		if err == nil {
			fmt.Printf("%s deleted\n", count.Of(n, "task"))
		}
		return err
	})
	return cmd
}

func (k commands) task() *cobra.Command {
	cmd := &cobra.Command{Use: "task", Short: "Commands for one task"}
	cmd.AddCommand(k.cp())
	return cmd
}

func (k commands) cp() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "cp TASK:PATH LOCAL",
		Short: "Copy files that a task left below its output path",
		Example: `  coracle run build --image busybox:1.36 --output-path /out --wait -- sh -c 'echo done > /out/result'
  coracle task cp build:result .`,
		Args: command.Exactly(2, "TASK:PATH LOCAL [--attempt N] [--index N]"),
	}
	var o LogOptions
	cmd.Flags().Int32Var(&o.Attempt, "attempt", 0, "the number of the attempt (default the last)")
	cmd.Flags().Int32Var(&o.Index, "index", -1, "the index in an array; required for arrays")
	cmd.Flags().Lookup("index").DefValue = "0" // hidden from the usage text
	k.onCluster(cmd, func(ctx context.Context, c cluster, args []string) error {
		if cmd.Flags().Changed("attempt") && o.Attempt < 1 {
			return errors.New("--attempt must be positive")
		}
		return c.Copy(ctx, args[0], args[1], o)
	})
	return cmd
}
