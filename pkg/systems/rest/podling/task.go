package podling

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/coracle-dev/coracle/pkg/systems/rest/wire"
)

func (a *app) run() *cobra.Command {
	var image string
	var env, ports []string
	var wait time.Duration
	cmd := &cobra.Command{Use: "run NAME --image IMAGE", Short: "Run a task", Args: exactly(1, "NAME --image IMAGE")}
	cmd.Flags().StringVarP(&image, "image", "i", "", "container image")
	cmd.Flags().StringArrayVarP(&env, "env", "e", nil, "environment, KEY=VALUE; may be repeated")
	cmd.Flags().StringArrayVarP(&ports, "port", "p", nil, "published port, hostPort:containerPort; may be repeated")
	cmd.Flags().DurationVar(&wait, "schedule-timeout", 0,
		"fail if no node takes the task within this time; 0 means 5m, negative no limit")
	_ = cmd.MarkFlagRequired("image")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		in := wire.CreateTask{Name: args[0], Image: image, ScheduleTimeoutSeconds: int64(math.Ceil(wait.Seconds()))}
		if wait < 0 {
			in.ScheduleTimeoutSeconds = -1
		}
		var err error
		if in.Env, err = keyValues("environment", env); err != nil {
			return err
		}
		for _, spec := range ports {
			host, port, err := portPair(spec)
			if err != nil {
				return err
			}
			in.Ports = append(in.Ports, wire.ContainerPort{ContainerPort: port, HostPort: host, Protocol: "TCP"})
		}
		var t wire.Task
		if err := a.client.do(cmd.Context(), http.MethodPost, "/api/v1/tasks", in, &t); err != nil {
			return fmt.Errorf("failed to create task: %w", err)
		}
		fmt.Fprintf(a.out, "Task created successfully:\n  ID:     %s\n  Name:   %s\n  Image:  %s\n  Status: %s\n", t.TaskID,
			t.Name, t.Image, t.Status)
		if t.NodeID != "" {
			fmt.Fprintf(a.out, "  Node:   %s\n", t.NodeID)
		}
		if t.SchedulingError != "" {
			fmt.Fprintf(a.out, "  Waits:  %s\n", t.SchedulingError)
		}
		if a.verbose {
			fmt.Fprintln(a.out, "\nEnvironment variables:")
			pairs(a.out, "  ", t.Env)
		}
		return nil
	}
	return cmd
}

// portPair parses hostPort:containerPort.
func portPair(spec string) (host, port int, err error) {
	h, p, ok := strings.Cut(spec, ":")
	host, err1 := strconv.Atoi(h)
	port, err2 := strconv.Atoi(p)
	if !ok || err1 != nil || err2 != nil {
		return 0, 0, fmt.Errorf("invalid port %q: it is not of the form hostPort:containerPort", spec)
	}
	return host, port, nil
}

func (a *app) ps() *cobra.Command {
	var id string
	cmd := &cobra.Command{Use: "ps", Short: "List tasks, or show one", Args: exactly(0, "[--task ID]")}
	cmd.Flags().StringVarP(&id, "task", "t", "", "show this task")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if id != "" {
			return a.task(cmd.Context(), id)
		}
		var list []wire.Task
		if err := a.client.do(cmd.Context(), http.MethodGet, "/api/v1/tasks", nil, &list); err != nil {
			return fmt.Errorf("failed to list tasks: %w", err)
		}
		if len(list) == 0 {
			fmt.Fprintln(a.out, "No tasks found.")
			return nil
		}
		return table(a.out, "ID\tNAME\tIMAGE\tSTATUS\tHEALTH\tNODE\tCREATED", func(line func(...any)) {
			for _, t := range list {
				if t.HealthStatus == wire.HealthUnknown {
					t.HealthStatus = ""
				}
				line(t.TaskID, t.Name, t.Image, t.Status, cmp.Or(t.HealthStatus, "-"), cmp.Or(t.NodeID, "-"),
					age(time.Since(t.CreatedAt)))
			}
		})
	}
	return cmd
}

func (a *app) task(ctx context.Context, id string) error {
	var t wire.Task
	if err := a.client.do(ctx, http.MethodGet, at("tasks", id), nil, &t); err != nil {
		return fmt.Errorf("failed to get task: %w", err)
	}
	fmt.Fprintln(a.out, "Task Details:")
	line := func(name, value string) { fmt.Fprintf(a.out, "  %-14s %s\n", name+":", value) }
	line("ID", t.TaskID)
	line("Name", t.Name)
	line("Image", t.Image)
	line("Status", t.Status)
	line("Node", t.NodeID)
	line("Container", t.ContainerID)
	line("Created", t.CreatedAt.Format(time.RFC3339))
	if t.StartedAt != nil {
		line("Started", t.StartedAt.Format(time.RFC3339))
	}
	if t.FinishedAt != nil {
		line("Finished", t.FinishedAt.Format(time.RFC3339))
	}
	if t.Error != "" {
		line("Error", t.Error)
	}
	if len(t.Env) > 0 {
		fmt.Fprintln(a.out, "\nEnvironment Variables:")
		pairs(a.out, "  ", t.Env)
	}
	return nil
}

func (a *app) nodes() *cobra.Command {
	cmd := &cobra.Command{Use: "nodes", Short: "List nodes", Args: exactly(0, "")}
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		var list []wire.Node
		if err := a.client.do(cmd.Context(), http.MethodGet, "/api/v1/nodes", nil, &list); err != nil {
			return fmt.Errorf("failed to list nodes: %w", err)
		}
		if len(list) == 0 {
			fmt.Fprintln(a.out, "No worker nodes registered.")
			return nil
		}
		err := table(a.out, "ID\tHOSTNAME\tPORT\tSTATUS\tCPU\tMEMORY\tTASKS\tLAST HEARTBEAT", func(line func(...any)) {
			for _, n := range list {
				cpu, memory := "N/A", "N/A"
				if n.Resources != nil {
					cpu, memory = cores(n.Resources.Capacity.CPU), size(n.Resources.Capacity.Memory)
				}
				line(n.NodeID, n.Hostname, n.Port, n.Status, cpu, memory, n.RunningTasks, age(time.Since(n.LastHeartbeat))+" ago")
			}
		})
		if err == nil && a.verbose {
			fmt.Fprintf(a.out, "\nTotal nodes: %d\n", len(list))
		}
		return err
	}
	return cmd
}

func (a *app) logs() *cobra.Command {
	var tail int
	var follow bool
	cmd := &cobra.Command{
		Use:   "logs TASK-ID",
		Short: "Print the logs of a task",
		Args:  exactly(1, "TASK-ID [--tail N] [--follow]"),
	}
	cmd.Flags().IntVar(&tail, "tail", 100, "number of lines from the end")
	cmd.Flags().BoolVarP(&follow, "follow", "f", false, "follow the logs until the task ends")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		var t wire.Task
		if err := a.client.do(cmd.Context(), http.MethodGet, at("tasks", args[0]), nil, &t); err != nil {
			return fmt.Errorf("failed to get task: %w", err)
		}
		switch {
		case t.NodeID == "":
			return errors.New("task has not been scheduled to a node yet")
		case t.Status == wire.TaskPending || t.Status == wire.TaskScheduled:
			return fmt.Errorf("task is not running yet (status: %s)", t.Status)
		}
		query := "?tail=" + strconv.Itoa(tail)
		if follow {
			return a.follow(cmd.Context(), at("tasks", args[0])+"/logs/stream"+query)
		}
		var logs wire.TaskLogs
		if err := a.client.do(cmd.Context(), http.MethodGet, at("tasks", args[0])+"/logs"+query, nil, &logs); err != nil {
			return fmt.Errorf("failed to get logs: %w", err)
		}
		_, err := io.WriteString(a.out, logs.Logs)
		return err
	}
	return cmd
}

func (a *app) follow(ctx context.Context, path string) error {
	in, err := a.client.open(ctx, http.MethodGet, path, nil)
	if err != nil {
		return fmt.Errorf("failed to get logs: %w", err)
	}
	defer in.Close()
	lines := bufio.NewScanner(in)
	lines.Buffer(nil, 256<<10)
	for lines.Scan() {
		if text, ok := strings.CutPrefix(lines.Text(), "data: "); ok {
			fmt.Fprintln(a.out, text)
		}
	}
	return lines.Err()
}

func (a *app) prune() *cobra.Command {
	var all bool
	cmd := &cobra.Command{
		Use: "prune", Short: "Remove ended tasks and pods, and offline workers", Args: exactly(0, "[--all]"),
		Long: "Remove tasks and pods that have ended, and workers that are offline.",
	}
	cmd.Flags().BoolVar(&all, "all", false, "also remove unfinished tasks, pods and services that were created over REST")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		path := "/api/v1/prune"
		if all {
			path += "?all=true"
		}
		var r wire.PruneResult
		if err := a.client.do(cmd.Context(), http.MethodPost, path, nil, &r); err != nil {
			return fmt.Errorf("failed to prune: %w", err)
		}
		fmt.Fprintf(a.out,
			"Pruned resources from database:\n  Pods:     %d\n  Tasks:    %d\n  Nodes:    %d\n  Services: %d\n",
			r.PodsRemoved, r.TasksRemoved, r.NodesRemoved, r.ServicesRemoved)
		return nil
	}
	return cmd
}
