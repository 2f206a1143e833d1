package apiserver

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/coracle-dev/coracle/pkg/api/registry"
	"github.com/coracle-dev/coracle/pkg/kind"
)

// usedSecrets lets upstream's validator of Secret-based tokens record the day of their last use as a label of the
// Secret.
type usedSecrets struct {
	registry *registry.Registry
	secrets  *kind.Resource
}

func (u usedSecrets) Secrets(namespace string) typedcorev1.SecretInterface {
	return patchSecret{usedSecrets: u, namespace: namespace}
}

type patchSecret struct {
	typedcorev1.SecretInterface // nil: the validator calls only Patch
	usedSecrets
	namespace string
}

// Patch patches a Secret as the API server's own user.
func (p patchSecret) Patch(ctx context.Context, name string, kind types.PatchType, data []byte, o metav1.PatchOptions,
	_ ...string) (*corev1.Secret, error) {
	ctx = request.WithUser(ctx, &user.DefaultInfo{Name: user.APIServerUser, Groups: []string{user.SystemPrivilegedGroup}})
	_, err := p.registry.Patch(ctx, registry.Target{Resource: p.secrets, Namespace: p.namespace, Name: name}, kind, data,
		o)
	return nil, err
}
