package podling

import (
	"cmp"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/coracle-dev/coracle/pkg/systems/rest/wire"
)

func (a *app) service() *cobra.Command {
	cmd := &cobra.Command{Use: "service", Short: "Create, list, show and delete services"}
	cmd.AddCommand(a.serviceCreate(), a.serviceList(), a.serviceGet(), a.remove("services", "Service"))
	return cmd
}

func (a *app) serviceCreate() *cobra.Command {
	var in wire.CreateService
	var labels, selectors, ports []string
	cmd := &cobra.Command{
		Use:   "create NAME --selector KEY=VALUE --port [NAME:]PORT[:TARGET]",
		Short: "Create a service",
		Args:  exactly(1, "NAME --selector KEY=VALUE --port PORT"),
	}
	cmd.Flags().StringVar(&in.Namespace, "namespace", "default", "namespace of the service")
	cmd.Flags().StringSliceVar(&labels, "label", nil, "label, key=value; may be repeated")
	cmd.Flags().StringSliceVar(&selectors, "selector", nil, "label of the pods, key=value; may be repeated")
	cmd.Flags().StringSliceVar(&ports, "port", nil, "port, [name:]port[:targetPort]; may be repeated")
	cmd.Flags().StringVar(&in.Type, "type", "ClusterIP", "ClusterIP, NodePort or LoadBalancer")
	cmd.Flags().StringVar(&in.SessionAffinity, "session-affinity", "", "None or ClientIP")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		in.Name = args[0]
		var err error
		if in.Selector, err = keyValues("selector", selectors); err != nil {
			return err
		}
		if in.Labels, err = keyValues("label", labels); err != nil {
			return err
		}
		for _, spec := range ports {
			p, err := parsePort(spec)
			if err != nil {
				return err
			}
			in.Ports = append(in.Ports, p)
		}
		var s wire.Service
		if err := a.client.do(cmd.Context(), http.MethodPost, "/api/v1/services", in, &s); err != nil {
			return fmt.Errorf("failed to create service: %w", err)
		}
		fmt.Fprintf(a.out,
			"Service created successfully:\n  ID:         %s\n  Name:       %s\n  Namespace:  %s\n  Type:       %s\n",
			s.ServiceID, s.Name, s.Namespace, s.Type)
		if s.ClusterIP != "" {
			fmt.Fprintf(a.out, "  ClusterIP:  %s\n  DNS:        %s.%s.svc\n", s.ClusterIP, s.Name, s.Namespace)
		}
		fmt.Fprintf(a.out, "  Ports:      %d\n", len(s.Ports))
		if a.verbose {
			a.details(&s)
		}
		return nil
	}
	return cmd
}

// parsePort parses [name:]port[:targetPort].
func parsePort(spec string) (wire.ServicePort, error) {
	p := wire.ServicePort{Protocol: "TCP"}
	parts := strings.Split(spec, ":")
	if _, err := strconv.Atoi(parts[0]); err != nil {
		p.Name, parts = parts[0], parts[1:]
	}
	var err error
	if len(parts) == 0 || len(parts) > 2 {
		err = strconv.ErrSyntax
	} else if p.Port, err = strconv.Atoi(parts[0]); err == nil {
		p.TargetPort = p.Port
		if len(parts) == 2 {
			p.TargetPort, err = strconv.Atoi(parts[1])
		}
	}
	if err != nil {
		return p, fmt.Errorf("invalid port %q: it is not of the form [name:]port[:targetPort]", spec)
	}
	return p, nil
}

func (a *app) details(s *wire.Service) {
	if len(s.Selector) > 0 {
		fmt.Fprintln(a.out, "\nSelector:")
		pairs(a.out, "  ", s.Selector)
	}
	fmt.Fprintln(a.out, "\nPorts:")
	for _, p := range s.Ports {
		name := ""
		if p.Name != "" {
			name = p.Name + ": "
		}
		fmt.Fprintf(a.out, "  - %s%d -> %d/%s\n", name, p.Port, p.TargetPort, p.Protocol)
	}
	if len(s.Labels) > 0 {
		fmt.Fprintln(a.out, "\nLabels:")
		pairs(a.out, "  ", s.Labels)
	}
}

func (a *app) serviceList() *cobra.Command {
	var namespace string
	cmd := &cobra.Command{Use: "list", Short: "List services", Args: exactly(0, "[--namespace NAMESPACE]")}
	cmd.Flags().StringVar(&namespace, "namespace", "", "only services of this namespace")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		path := "/api/v1/services"
		if namespace != "" {
			path += "?namespace=" + url.QueryEscape(namespace)
		}
		var list []wire.Service
		if err := a.client.do(cmd.Context(), http.MethodGet, path, nil, &list); err != nil {
			return fmt.Errorf("failed to list services: %w", err)
		}
		if len(list) == 0 {
			fmt.Fprintln(a.out, "No services found")
			return nil
		}
		const format = "%-20s %-15s %-10s %-15s %-40s\n"
		fmt.Fprintf(a.out, format, "NAME", "NAMESPACE", "TYPE", "CLUSTER-IP", "PORTS")
		fmt.Fprintln(a.out, strings.Repeat("-", 100))
		for _, s := range list {
			var ports []string
			for _, p := range s.Ports {
				port := strconv.Itoa(p.Port)
				if p.Name != "" {
					port = p.Name + ":" + port
				}
				ports = append(ports, port)
			}
			fmt.Fprintf(a.out, format, short(s.Name, 20), short(s.Namespace, 15), s.Type, cmp.Or(s.ClusterIP, "None"),
				short(cmp.Or(strings.Join(ports, ","), "None"), 40))
		}
		return nil
	}
	return cmd
}

func (a *app) serviceGet() *cobra.Command {
	cmd := &cobra.Command{Use: "get SERVICE-ID", Short: "Show a service and its endpoints", Args: exactly(1, "SERVICE-ID")}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		var s wire.Service
		if err := a.client.do(cmd.Context(), http.MethodGet, at("services", args[0]), nil, &s); err != nil {
			return fmt.Errorf("failed to get service: %w", err)
		}
		var e wire.Endpoints
		if err := a.client.do(cmd.Context(), http.MethodGet, at("services", args[0])+"/endpoints", nil, &e); err != nil {
			return fmt.Errorf("failed to get endpoints: %w", err)
		}
		fmt.Fprintf(a.out, "Service: %s\n  ID:         %s\n  Namespace:  %s\n  Type:       %s\n", s.Name, s.ServiceID,
			s.Namespace, s.Type)
		if s.ClusterIP != "" {
			fmt.Fprintf(a.out, "  ClusterIP:  %s\n  DNS:        %s.%s.svc\n", s.ClusterIP, s.Name, s.Namespace)
		}
		fmt.Fprintf(a.out, "  Created:    %s\n", s.CreatedAt.Format(time.DateTime))
		a.details(&s)
		if len(e.Subsets) == 0 {
			fmt.Fprintln(a.out, "\nEndpoints: None")
			return nil
		}
		fmt.Fprintln(a.out, "\nEndpoints:")
		for _, subset := range e.Subsets {
			a.addresses("Ready", subset.Addresses)
			a.addresses("Not Ready", subset.NotReadyAddresses)
		}
		return nil
	}
	return cmd
}

func (a *app) addresses(title string, list []wire.EndpointAddress) {
	if len(list) > 0 {
		fmt.Fprintf(a.out, "  %s:\n", title)
	}
	for _, address := range list {
		fmt.Fprintf(a.out, "    - %s (pod: %s)\n", address.IP, address.PodID)
	}
}
