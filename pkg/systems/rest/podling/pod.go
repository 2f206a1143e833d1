package podling

import (
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/coracle-dev/coracle/pkg/systems/rest/wire"
)

func (a *app) pod() *cobra.Command {
	cmd := &cobra.Command{Use: "pod", Short: "Create, list, show and delete pods"}
	cmd.AddCommand(a.podCreate(), a.podList(), a.podGet(), a.remove("pods", "Pod"), a.podLogs())
	return cmd
}

func (a *app) podCreate() *cobra.Command {
	var in wire.CreatePod
	var labels, containers, ports []string
	cmd := &cobra.Command{
		Use:   "create NAME --container NAME:IMAGE[:ENV=VALUE,...]",
		Short: "Create a pod",
		Args:  exactly(1, "NAME --container NAME:IMAGE"),
	}
	cmd.Flags().StringVar(&in.Namespace, "namespace", "default", "namespace of the pod")
	cmd.Flags().StringArrayVarP(&labels, "label", "l", nil, "label, key=value; may be repeated")
	cmd.Flags().StringArrayVarP(&containers, "container", "c", nil,
		"container, name:image[:env1=val1,env2=val2]; may be repeated")
	cmd.Flags().StringArrayVarP(&ports, "port", "p", nil,
		"published port, [containerName:]hostPort:containerPort; may be repeated")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if len(containers) == 0 {
			return fmt.Errorf("at least one container is required (use --container flag)")
		}
		in.Name = args[0]
		var err error
		if in.Labels, err = keyValues("label", labels); err != nil {
			return err
		}
		for _, spec := range containers {
			c, err := parseContainer(spec)
			if err != nil {
				return err
			}
			in.Containers = append(in.Containers, c)
		}
		for _, spec := range ports {
			if err := publish(in.Containers, spec); err != nil {
				return err
			}
		}
		var p wire.Pod
		if err := a.client.do(cmd.Context(), http.MethodPost, "/api/v1/pods", in, &p); err != nil {
			return fmt.Errorf("failed to create pod: %w", err)
		}
		fmt.Fprintf(a.out, "Pod created successfully:\n  ID:        %s\n  Name:      %s\n  Namespace: %s\n  Status:    %s\n",
			p.PodID, p.Name, p.Namespace, p.Status)
		if p.NodeID != "" {
			fmt.Fprintf(a.out, "  Node:      %s\n", p.NodeID)
		}
		fmt.Fprintf(a.out, "  Containers: %d\n", len(p.Containers))
		if a.verbose {
			fmt.Fprintln(a.out, "\nContainers:")
			for _, c := range p.Containers {
				fmt.Fprintf(a.out, "  - %s (%s)\n", c.Name, c.Image)
			}
			if len(p.Labels) > 0 {
				fmt.Fprintln(a.out, "\nLabels:")
				pairs(a.out, "  ", p.Labels)
			}
		}
		return nil
	}
	return cmd
}

// parseContainer parses name:image[:env1=val1,env2=val2]. The image may have a tag, so the last part is the
// environment only if it has an equals sign.
func parseContainer(spec string) (wire.Container, error) {
	name, image, ok := strings.Cut(spec, ":")
	c := wire.Container{Name: name, Env: map[string]string{}}
	if i := strings.LastIndexByte(image, ':'); i >= 0 && strings.Contains(image[i:], "=") {
		for _, pair := range strings.Split(image[i+1:], ",") {
			k, v, isPair := strings.Cut(pair, "=")
			if !isPair && pair != "" {
				return c, fmt.Errorf("invalid container %q: %q is not of the form key=value", spec, pair)
			}
			if pair != "" {
				c.Env[k] = v
			}
		}
		image = image[:i]
	}
	if c.Image = image; !ok || name == "" || image == "" {
		return c, fmt.Errorf("invalid container %q: it is not of the form name:image[:env1=val1,env2=val2]", spec)
	}
	return c, nil
}

// publish adds the port [containerName:]hostPort:containerPort to its container.
func publish(containers []wire.Container, spec string) error {
	name, pair, parts := containers[0].Name, spec, strings.Count(spec, ":")
	switch {
	case parts == 2:
		name, pair, _ = strings.Cut(spec, ":")
	case len(containers) > 1:
		return fmt.Errorf("port %q needs the name of a container, since there are several: "+
			"containerName:hostPort:containerPort", spec)
	}
	host, port, err := portPair(pair)
	if err != nil {
		return err
	}
	i := slices.IndexFunc(containers, func(c wire.Container) bool { return c.Name == name })
	if i < 0 {
		return fmt.Errorf("port %q: there is no container %q", spec, name)
	}
	containers[i].Ports = append(containers[i].Ports, wire.ContainerPort{
		ContainerPort: port, HostPort: host, Protocol: "TCP",
	})
	return nil
}

func (a *app) podList() *cobra.Command {
	cmd := &cobra.Command{Use: "list", Short: "List pods", Args: exactly(0, "")}
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		var list []wire.Pod
		if err := a.client.do(cmd.Context(), http.MethodGet, "/api/v1/pods", nil, &list); err != nil {
			return fmt.Errorf("failed to list pods: %w", err)
		}
		if len(list) == 0 {
			fmt.Fprintln(a.out, "No pods found")
			return nil
		}
		const format = "%-25s %-20s %-12s %-10s %s\n"
		fmt.Fprintf(a.out, format, "POD ID", "NAME", "NAMESPACE", "STATUS", "CONTAINERS")
		fmt.Fprintln(a.out, strings.Repeat("-", 80))
		for _, p := range list {
			var names []string
			for _, c := range p.Containers {
				names = append(names, c.Name)
			}
			fmt.Fprintf(a.out, format, p.PodID, short(p.Name, 20), short(p.Namespace, 12), p.Status, strings.Join(names, ","))
		}
		return nil
	}
	return cmd
}

func (a *app) podGet() *cobra.Command {
	cmd := &cobra.Command{Use: "get POD-ID", Short: "Show a pod", Args: exactly(1, "POD-ID")}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		var p wire.Pod
		if err := a.client.do(cmd.Context(), http.MethodGet, at("pods", args[0]), nil, &p); err != nil {
			return fmt.Errorf("failed to get pod: %w", err)
		}
		line := func(name, value string) {
			if value != "" {
				fmt.Fprintf(a.out, "%-14s %s\n", name+":", value)
			}
		}
		stamp := func(t *time.Time) string {
			if t == nil {
				return ""
			}
			return t.Format(time.DateTime)
		}
		line("Pod ID", p.PodID)
		line("Name", p.Name)
		line("Namespace", p.Namespace)
		line("Status", p.Status)
		line("Node ID", p.NodeID)
		line("Created", stamp(&p.CreatedAt))
		line("Scheduled", stamp(p.ScheduledAt))
		line("Started", stamp(p.StartedAt))
		line("Finished", stamp(p.FinishedAt))
		line("Message", p.Message)
		line("Reason", p.Reason)
		if len(p.Labels) > 0 {
			fmt.Fprintln(a.out, "\nLabels:")
			pairs(a.out, "  ", p.Labels)
		}
		fmt.Fprintf(a.out, "\nContainers (%d):\n", len(p.Containers))
		for i := range p.Containers {
			a.container(i+1, &p.Containers[i])
		}
		return nil
	}
	return cmd
}

func (a *app) container(number int, c *wire.Container) {
	fmt.Fprintf(a.out, "\n  [%d] %s\n      Image:       %s\n      Status:      %s\n", number, c.Name, c.Image, c.Status)
	if c.ContainerID != "" {
		fmt.Fprintf(a.out, "      Container ID: %s\n", short(c.ContainerID, 12))
	}
	if c.ExitCode != nil {
		fmt.Fprintf(a.out, "      Exit Code:   %d\n", *c.ExitCode)
	}
	if c.Error != "" {
		fmt.Fprintf(a.out, "      Error:       %s\n", c.Error)
	}
	if c.HealthStatus != "" {
		fmt.Fprintf(a.out, "      Health:      %s\n", c.HealthStatus)
	}
	if len(c.Env) > 0 {
		fmt.Fprintln(a.out, "      Environment:")
		pairs(a.out, "        ", c.Env)
	}
}

func (a *app) podLogs() *cobra.Command {
	var container string
	var tail int
	cmd := &cobra.Command{
		Use:   "logs POD-ID",
		Short: "Print the logs of a pod",
		Args:  exactly(1, "POD-ID [--container NAME] [--tail N]"),
	}
	cmd.Flags().StringVarP(&container, "container", "c", "", "only this container")
	cmd.Flags().IntVarP(&tail, "tail", "t", 100, "number of lines from the end")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		query := url.Values{"tail": {strconv.Itoa(tail)}}
		if container != "" {
			query.Set("container", container)
		}
		var logs wire.PodLogs
		if err := a.client.do(cmd.Context(), http.MethodGet, at("pods", args[0])+"/logs?"+query.Encode(), nil, &logs); err !=
			nil {
			return fmt.Errorf("failed to get pod logs: %w", err)
		}
		for _, name := range slices.Sorted(maps.Keys(logs.Logs)) {
			fmt.Fprintf(a.out, "==> Container: %s <==\n%s\n", name, logs.Logs[name])
		}
		return nil
	}
	return cmd
}
