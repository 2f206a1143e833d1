package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	resourcehelper "k8s.io/component-helpers/resource"
	ctrl "sigs.k8s.io/controller-runtime/pkg/client"

	tasks "github.com/coracle-dev/coracle/apis/tasks/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/cli/socket"
	"github.com/coracle-dev/coracle/pkg/systems/command"
)

// nodeRow is a node in `coracle nodes -o json`. Sizes are in bytes.
type nodeRow struct {
	Name          string       `json:"name"`
	Status        string       `json:"status"`
	Address       string       `json:"address,omitempty"`
	CPURequests   string       `json:"cpuRequests"`
	CPUs          string       `json:"cpus"`
	MemoryRequest int64        `json:"memoryRequestsBytes"`
	Memory        int64        `json:"memoryBytes"`
	Pods          int          `json:"pods"`
	MaxPods       int64        `json:"maxPods"`
	Tasks         int          `json:"tasks"`
	Disk          *diskUsage   `json:"disk,omitempty"` // absent if the node did not answer
	Heartbeat     *metav1.Time `json:"heartbeat,omitempty"`
}

const offline = "Offline"

// Nodes prints the cluster's nodes with the CPU and memory that their pods request, and the usage of their disks.
func Nodes(ctx context.Context, c *command.Cluster, output string, out io.Writer) error {
	if output != "" && output != "wide" && output != "json" {
		return fmt.Errorf("unknown output %q: use -o wide or -o json", output)
	}
	rows, err := nodeRows(ctx, c)
	if err != nil {
		return err
	}
	if err := measureDisks(ctx, c.REST, rows); err != nil {
		return err
	}
	if output == "json" {
		encoder := json.NewEncoder(out)
		encoder.SetIndent("", "  ")
		return encoder.Encode(rows)
	}
	now := time.Now()
	header := "NODE\tSTATUS\tCPU\tMEMORY\tDISK\tPODS\tHEARTBEAT"
	if output == "wide" {
		header += "\tADDRESS\tIMAGES\tTASKS"
		out = struct{ io.Writer }{out} // all columns, also on a terminal that is narrower
	}
	return command.Table(out, header, func(line func(...any)) {
		for _, r := range rows {
			disk, images := "", ""
			if r.Disk != nil {
				disk = socket.Bytes(r.Disk.Used) + "/" + socket.Bytes(r.Disk.Capacity)
				images = socket.Bytes(r.Disk.Images)
			}
			cells := []any{
				r.Name, r.Status, r.CPURequests + "/" + r.CPUs,
				socket.Bytes(r.MemoryRequest) + "/" + socket.Bytes(r.Memory), disk,
				fmt.Sprintf("%d/%d", r.Pods, r.MaxPods), command.Ago(r.Heartbeat, now),
			}
			if output == "wide" {
				cells = append(cells, r.Address, images, r.Tasks)
			}
			line(cells...)
		}
	})
}

func nodeRows(ctx context.Context, c *command.Cluster) ([]*nodeRow, error) {
	var nodes corev1.NodeList
	var pods corev1.PodList
	// A node renews its Lease every few seconds and its status every few minutes. A user may be allowed to list
	// nodes but not Leases.
	var leases coordinationv1.LeaseList
	if err := c.Client.List(ctx, &nodes); err != nil {
		return nil, err
	}
	if err := c.Client.List(ctx, &pods); err != nil {
		return nil, err
	}
	if err := c.Client.List(ctx, &leases, ctrl.InNamespace(corev1.NamespaceNodeLease)); err != nil &&
		!apierrors.IsForbidden(err) {
		return nil, err
	}
	rows, byName, requests := []*nodeRow{}, map[string]*nodeRow{}, map[string]corev1.ResourceList{}
	for i := range nodes.Items {
		r := newNodeRow(&nodes.Items[i])
		rows, byName[r.Name], requests[r.Name] = append(rows, r), r, corev1.ResourceList{}
	}
	for i := range leases.Items {
		at, r := leases.Items[i].Spec.RenewTime, byName[leases.Items[i].Name]
		if at != nil && r != nil && (r.Heartbeat == nil || r.Heartbeat.Time.Before(at.Time)) {
			r.Heartbeat = &metav1.Time{Time: at.Time}
		}
	}
	for i := range pods.Items {
		p := &pods.Items[i]
		r := byName[p.Spec.NodeName]
		if r == nil || p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed {
			continue
		}
		r.Pods++
		if p.Labels[tasks.LabelTask] != "" {
			r.Tasks++
		}
		sum := requests[r.Name]
		for name, q := range resourcehelper.PodRequests(p, resourcehelper.PodResourcesOptions{}) {
			q.Add(sum[name])
			sum[name] = q
		}
	}
	for _, r := range rows {
		sum := requests[r.Name]
		r.CPURequests, r.MemoryRequest = sum.Cpu().String(), sum.Memory().Value()
	}
	return rows, nil
}

func newNodeRow(n *corev1.Node) *nodeRow {
	capacity := n.Status.Capacity
	r := &nodeRow{Name: n.Name, Status: offline, CPUs: capacity.Cpu().String(), Memory: capacity.Memory().Value(),
		MaxPods: capacity.Pods().Value()}
	for _, c := range n.Status.Conditions {
		if c.Type == corev1.NodeReady {
			r.Heartbeat = &c.LastHeartbeatTime
			if c.Status == corev1.ConditionTrue {
				r.Status = "Online"
			}
		}
	}
	if n.Spec.Unschedulable {
		r.Status += ",Cordoned"
	}
	for _, a := range n.Status.Addresses {
		if a.Type == corev1.NodeInternalIP {
			r.Address = a.Address
		}
	}
	return r
}
