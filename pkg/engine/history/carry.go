package history

import (
	"context"
	"errors"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/coracle-dev/coracle/pkg/engine"
)

// Step is the result of a plan for a workload with revisions, in the order to carry it out.
type Step struct {
	// Own adopts and releases objects, and writes the current revision. settled is false if Plan must run again.
	Own func() (settled bool, err error)
	// Pods creates and deletes pods.
	Pods func() error
	// Forget are revisions to delete.
	Forget []*appsv1.ControllerRevision
	// Status is the workload with its new status, or nil if it is unchanged.
	Status client.Object
	// More means that more must be done at once. Otherwise Again is the time until then; 0 means never.
	More  bool
	Again time.Duration
}

// Carry carries out a step. It stops silently if the namespace is terminating or the workload is gone.
func (s Step) Carry(ctx context.Context, env engine.Env, req engine.Request) (engine.Result, error) {
	switch settled, err := s.Own(); {
	case apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause):
		return engine.Result{}, nil
	case err != nil:
		return engine.Result{}, client.IgnoreNotFound(err)
	case !settled:
		env.Enqueue(req, 0)
		return engine.Result{}, nil
	}
	failed := s.Pods()
	if failed == nil {
		failed = Delete(ctx, env.Client, s.Forget)
	}
	if s.Status != nil {
		if err := env.Client.Status().Update(ctx, s.Status); client.IgnoreNotFound(err) != nil {
			return engine.Result{}, errors.Join(failed, err)
		}
	}
	if failed == nil && s.More {
		env.Enqueue(req, 0)
	}
	return engine.Result{RequeueAfter: s.Again}, failed
}
