package rootca

import (
	"context"
	"crypto/sha256"
	"fmt"
	"strings"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/coracle-dev/coracle/pkg/engine"
)

// Signer is a signer whose CA bundle is published.
type Signer struct {
	Name string
	// Reconciler is the reconciler's name. Account is its service account in kube-system, which may attest for the
	// signer.
	Reconciler, Account string
}

// APIServer returns upstream's signer of the API server's serving certificates.
func APIServer() Signer {
	return Signer{
		"kubernetes.io/kube-apiserver-serving", "trustbundle", "kube-apiserver-serving-clustertrustbundle-publisher",
	}
}

// Kubelet returns the signer of the nodes' serving certificates, which monitoring verifies when it reads logs and
// metrics.
func Kubelet() Signer {
	return Signer{
		certificatesv1.KubeletServingSignerName, "kubelettrustbundle", "kubelet-serving-clustertrustbundle-publisher",
	}
}

// bundleName returns upstream's name of the signer's ClusterTrustBundle with this content.
func bundleName(signer, pem string) string {
	sum := sha256.Sum256([]byte(pem))
	return fmt.Sprintf("%s:%x", strings.ReplaceAll(signer, "/", ":"), sum[:12])
}

// NewPublisher declares the reconciler of a signer's ClusterTrustBundle.
func NewPublisher(signer Signer, bundle *Bundle) *engine.Reconciler {
	all := []engine.Request{engine.RequestFor("", signer.Name)}
	return &engine.Reconciler{
		Name: signer.Reconciler, Account: signer.Account, Workers: 1,
		Watches: []engine.Watch{
			{
				Object: &certificatesv1.ClusterTrustBundle{},
				Map: func(_ context.Context, _ engine.Env, o client.Object) []engine.Request {
					if b, ok := o.(*certificatesv1.ClusterTrustBundle); ok && b.Spec.SignerName == signer.Name {
						return all
					}
					return nil
				},
			},
		},
		Writes: []engine.Write{
			{Object: &certificatesv1.ClusterTrustBundle{}, Parts: []engine.Part{engine.Create, engine.Spec, engine.Delete}},
		},
		New: func(env engine.Env) engine.Func {
			enqueue := func() { env.Enqueue(all[0], 0) }
			bundle.Follow(signer.Reconciler, enqueue)
			enqueue()
			return func(ctx context.Context, _ engine.Request) (engine.Result, error) {
				pem := bundle.PEM()
				if pem == "" {
					return engine.Result{}, nil // Follow reports it
				}
				err := publish(ctx, env, signer.Name, pem)
				if apierrors.IsForbidden(err) {
					// The default roles are written while the controllers start, and are not watched here.
					env.Log.Debug("could not write trust bundle, retrying", "error", err)
					return engine.Result{RequeueAfter: roleWait}, nil
				}
				return engine.Result{}, err
			}
		},
	}
}

// roleWait is the retry interval while the role that allows attesting does not exist.
const roleWait = time.Second

func publish(ctx context.Context, env engine.Env, signer, pem string) error {
	var list certificatesv1.ClusterTrustBundleList
	if err := env.Cache.List(ctx, &list); err != nil {
		return err
	}
	write, stale := PlanBundles(list.Items, signer, pem)
	switch {
	case write == nil:
	case write.ResourceVersion == "":
		if err := env.Client.Create(ctx, write); err != nil && !apierrors.IsAlreadyExists(err) {
			return err
		}
	default:
		if err := env.Client.Update(ctx, write); err != nil {
			return err
		}
	}
	for _, b := range stale {
		if err := engine.Remove(ctx, env.Client, b); err != nil {
			return err
		}
	}
	return nil
}

// PlanBundles returns the signer's bundle if it must be written, and the bundles to delete after that.
func PlanBundles(there []certificatesv1.ClusterTrustBundle,
	signer, pem string) (write *certificatesv1.ClusterTrustBundle, stale []*certificatesv1.ClusterTrustBundle) {
	var present *certificatesv1.ClusterTrustBundle
	for i := range there {
		switch b := &there[i]; {
		case b.Spec.SignerName != signer:
		case b.Name == bundleName(signer, pem):
			present = b
		default:
			stale = append(stale, b)
		}
	}
	switch {
	case present == nil:
		write = &certificatesv1.ClusterTrustBundle{ObjectMeta: metav1.ObjectMeta{Name: bundleName(signer, pem)},
			Spec: certificatesv1.ClusterTrustBundleSpec{SignerName: signer, TrustBundle: pem}}
	case present.Spec.TrustBundle != pem:
		write = present.DeepCopy()
		write.Spec.TrustBundle = pem
	}
	return write, stale
}
