package certificates

import (
	"context"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/coracle-dev/coracle/pkg/engine"
)

// retainPodRequest is how long upstream retains PodCertificateRequests. A node reads the answer at once.
const retainPodRequest = 15 * time.Minute

// NewPodCleaner declares the reconciler that deletes old PodCertificateRequests.
func NewPodCleaner() *engine.Reconciler {
	requests := &certificatesv1.PodCertificateRequest{}
	return &engine.Reconciler{
		Name: "podcertificates", Account: "podcertificaterequestcleaner", Workers: 1,
		Watches: []engine.Watch{{Object: requests, Changed: func(_, _ client.Object) bool { return false }}},
		Writes:  []engine.Write{{Object: requests, Parts: []engine.Part{engine.Delete}}},
		New: func(env engine.Env) engine.Func {
			return engine.Each(env, func(ctx context.Context, r *certificatesv1.PodCertificateRequest) (engine.Result, error) {
				if left := r.CreationTimestamp.Add(retainPodRequest).Sub(env.Now()); left > 0 {
					return engine.Result{RequeueAfter: left}, nil
				}
				return engine.Result{}, engine.Remove(ctx, env.Client, r)
			})
		},
	}
}
