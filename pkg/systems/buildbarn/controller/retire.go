package controller

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	buildbarn "github.com/coracle-dev/coracle/apis/buildbarn/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/base/pki"
	"github.com/coracle-dev/coracle/pkg/engine/podstate"
	"github.com/coracle-dev/coracle/pkg/systems/buildbarn/certificates"
	"github.com/coracle-dev/coracle/pkg/systems/buildbarn/config"
	"github.com/coracle-dev/coracle/pkg/systems/buildbarn/queue"
)

// A pool shrinks by its idle workers first. Before its Deployment is scaled down, the pods to remove are chosen and
// marked, so that the Deployment removes them, and the scheduler gives them no more actions. If the scheduler does not
// answer, busy workers may be removed instead, but no action is lost: a terminated worker finishes its actions first.

const retireCost = "-1000"

func retired(p *corev1.Pod) bool { return p.Annotations[buildbarn.AnnotationRetired] != "" }

// leaving returns the n pods to remove, chosen in this order: already marked, not ready, executing the fewest actions,
// youngest. It ignores terminating pods, which the Deployment no longer counts.
func leaving(pods []*corev1.Pod, busy map[string]int, n int32) []*corev1.Pod {
	pods = slices.DeleteFunc(slices.Clone(pods), func(p *corev1.Pod) bool { return p.DeletionTimestamp != nil })
	first := func(yes bool) int {
		if yes {
			return 0
		}
		return 1
	}
	slices.SortFunc(pods, func(a, b *corev1.Pod) int {
		return cmp.Or(cmp.Compare(first(retired(a)), first(retired(b))),
			cmp.Compare(first(!podstate.Ready(a)), first(!podstate.Ready(b))),
			cmp.Compare(busy[a.Name], busy[b.Name]), b.CreationTimestamp.Compare(a.CreationTimestamp.Time),
			cmp.Compare(a.Name, b.Name))
	})
	return pods[:min(int(n), len(pods))]
}

// abandoned plans the deletion of pods that were marked but not removed, for example because this process ended in
// between: the scheduler gives them no actions.
func (p *plan) abandoned(replicas int32) {
	d := p.o.Deployment
	if w, ok := p.part.(*buildbarn.BuildbarnWorker); !ok || w.Spec.Scale == nil || d == nil || p.Retire > 0 ||
		d.Status.ObservedGeneration < d.Generation || d.Status.Replicas > replicas {
		return
	}
	for _, pod := range p.o.Pods {
		if retired(pod) && pod.DeletionTimestamp == nil {
			p.Delete = append(p.Delete, pod)
		}
	}
}

// retire chooses n pods, marks them, and tells Buildbarn's scheduler to assign no more actions to them. It returns nil
// if the scheduler does not respond.
func (r *reconciler) retire(ctx context.Context, w *buildbarn.BuildbarnWorker, pods []*corev1.Pod, n int32) error {
	s, err := r.scheduler(ctx, w)
	var busy map[string]int
	if err == nil {
		busy, err = s.Busy(ctx, queue.Name{
			InstanceNamePrefix: w.Spec.Scale.InstanceNamePrefix, Platform: config.Sorted(w.Spec.Scale.Platform),
		})
	}
	if err != nil {
		r.Log.Debug("could not ask a scheduler which workers are busy", "worker", w.Name, "error", err)
		return nil
	}
	var names []string
	for _, pod := range leaving(pods, busy, n) {
		names = append(names, pod.Name)
		if retired(pod) {
			continue
		}
		next := pod.DeepCopy()
		metav1.SetMetaDataAnnotation(&next.ObjectMeta, buildbarn.AnnotationRetired, "true")
		metav1.SetMetaDataAnnotation(&next.ObjectMeta, corev1.PodDeletionCost, retireCost)
		if err := r.Client.Update(ctx, next); client.IgnoreNotFound(err) != nil {
			return err
		}
	}
	if err := s.Terminate(ctx, names); err != nil {
		r.Log.Debug("could not terminate workers in a scheduler", "worker", w.Name, "error", err)
	}
	return nil
}

func (r *reconciler) scheduler(ctx context.Context, w *buildbarn.BuildbarnWorker) (queue.Scheduler, error) {
	of, err := r.schedulerOf(ctx, w)
	if err != nil {
		return queue.Scheduler{}, err
	}
	pod, err := r.schedulerPod(ctx, w.Namespace, of)
	if err != nil {
		return queue.Scheduler{}, err
	}
	s := queue.Scheduler{Address: net.JoinHostPort(pod.Status.PodIP, strconv.Itoa(int(buildbarn.PortSchedulerQueue)))}
	if w.Spec.TLS == nil {
		return s, nil
	}
	name := w.Spec.TLS.SecretName
	if farm := metav1.GetControllerOfNoCopy(w); farm != nil {
		name = config.OperatorOf(farm.Name)
	}
	var secret corev1.Secret
	if err := r.Cache.Get(ctx, client.ObjectKey{Namespace: w.Namespace, Name: name}, &secret); err != nil {
		return s, err
	}
	if err := checkSecret(secret.Data); err != nil {
		return s, fmt.Errorf("Secret %s: %w", name, err)
	}
	pair, err := pki.ForeignPair(secret.Data[certificates.Certificate], secret.Data[certificates.Key])
	if err != nil {
		return s, err
	}
	s.TLS = &tls.Config{
		MinVersion:   tls.VersionTLS12,
		ServerName:   of + "." + w.Namespace,
		Certificates: []tls.Certificate{pair},
		RootCAs:      x509.NewCertPool(),
	}
	if !s.TLS.RootCAs.AppendCertsFromPEM(secret.Data[certificates.Authorities]) {
		return s, errors.New("the Secret " + name + " has no authorities")
	}
	return s, nil
}
