package controller

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"

	buildbarn "github.com/coracle-dev/coracle/apis/buildbarn/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/engine"
	"github.com/coracle-dev/coracle/pkg/engine/podstate"
	"github.com/coracle-dev/coracle/pkg/systems/buildbarn/metrics"
)

func (r *reconciler) queue(ctx context.Context, w *buildbarn.BuildbarnWorker) (*metrics.Queue, error) {
	pod, err := r.schedulerPod(ctx, w.Namespace, w.Spec.Scale.Scheduler)
	if err != nil {
		return nil, err
	}
	families, err := r.read(ctx, pod.Status.PodIP)
	if err != nil {
		// The error's text has no port number of the connection, so that a retry does not write the status again.
		r.Log.Debug("could not read the metrics of a scheduler", "pod", pod.Name, "error", err)
		return nil, fmt.Errorf("the metrics of pod %s cannot be read from port %d: let its configuration serve them there "+
			"(diagnosticsHttpServer with enablePrometheus)", pod.Name, buildbarn.PortMetrics)
	}
	return metrics.Of(metrics.Queues(families), w.Spec.Scale), nil
}

// pods returns the pods of a part.
func (r *reconciler) pods(ctx context.Context, p buildbarn.Part) ([]*corev1.Pod, error) {
	var pods corev1.PodList
	if err := r.ByIndex(ctx, &pods, p.GetNamespace(), indexLabels, p.Component()+"/"+p.GetName()); err != nil {
		return nil, err
	}
	return metrics.Own(ctx, r.Cache, p, pods.Items)
}

func (r *reconciler) schedulerPod(ctx context.Context, namespace, name string) (*corev1.Pod, error) {
	s, err := engine.Find[buildbarn.BuildbarnScheduler](ctx, r.Cache, namespace, name)
	if err != nil {
		return nil, err
	}
	if s == nil {
		return nil, fmt.Errorf("BuildbarnScheduler %s does not exist", name)
	}
	pods, err := r.pods(ctx, s)
	if err != nil {
		return nil, err
	}
	for _, pod := range pods {
		if pod.DeletionTimestamp == nil && pod.Status.PodIP != "" && podstate.Ready(pod) {
			return pod, nil
		}
	}
	return nil, fmt.Errorf("the BuildbarnScheduler %s has no ready pod", name)
}
