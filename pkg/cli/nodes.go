package cli

import (
	"context"
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

// Nodes prints the cluster's nodes with the CPU and memory that their pods request.
func Nodes(ctx context.Context, c *command.Cluster, out io.Writer) error {
	var nodes corev1.NodeList
	var pods corev1.PodList
	if err := c.Client.List(ctx, &nodes); err != nil {
		return err
	}
	if err := c.Client.List(ctx, &pods); err != nil {
		return err
	}
	running, carried, requested := map[string]int{}, map[string]int{}, map[string]corev1.ResourceList{}
	for _, p := range pods.Items {
		if p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed {
			continue
		}
		carried[p.Spec.NodeName]++
		sum := requested[p.Spec.NodeName]
		for name, q := range resourcehelper.PodRequests(&p, resourcehelper.PodResourcesOptions{}) {
			q.Add(sum[name])
			if sum == nil {
				sum = corev1.ResourceList{}
			}
			sum[name] = q
		}
		requested[p.Spec.NodeName] = sum
		if p.Labels[tasks.LabelTask] != "" {
			running[p.Spec.NodeName]++
		}
	}
	// A node renews its Lease every few seconds and its status every few minutes. A user may be allowed to list
	// nodes but not Leases.
	var leases coordinationv1.LeaseList
	if err := c.Client.List(ctx, &leases, ctrl.InNamespace(corev1.NamespaceNodeLease)); err != nil &&
		!apierrors.IsForbidden(err) {
		return err
	}
	renewed := map[string]metav1.Time{}
	for i := range leases.Items {
		if at := leases.Items[i].Spec.RenewTime; at != nil {
			renewed[leases.Items[i].Name] = metav1.NewTime(at.Time)
		}
	}
	now := time.Now()
	return command.Table(out, "NODE\tSTATUS\tADDRESS\tCPU\tMEMORY\tPODS\tTASKS\tHEARTBEAT", func(line func(...any)) {
		for _, n := range nodes.Items {
			status := "Offline"
			var beat *metav1.Time
			for _, cond := range n.Status.Conditions {
				if cond.Type == corev1.NodeReady {
					beat = &cond.LastHeartbeatTime
					if cond.Status == corev1.ConditionTrue {
						status = "Online"
					}
				}
			}
			if n.Spec.Unschedulable {
				status += ",Cordoned"
			}
			if at, ok := renewed[n.Name]; ok && (beat == nil || beat.Before(&at)) {
				beat = &at
			}
			address := ""
			for _, a := range n.Status.Addresses {
				if a.Type == corev1.NodeInternalIP {
					address = a.Address
				}
			}
			capacity, asked := n.Status.Capacity, requested[n.Name]
			line(n.Name, status, address, fmt.Sprintf("%s/%s", asked.Cpu(), capacity.Cpu()),
				socket.Bytes(asked.Memory().Value())+"/"+socket.Bytes(capacity.Memory().Value()),
				fmt.Sprintf("%d/%s", carried[n.Name], capacity.Pods()), running[n.Name], command.Ago(beat, now))
		}
	})
}
