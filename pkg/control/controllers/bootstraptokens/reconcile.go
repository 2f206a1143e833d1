// Package bootstraptokens signs the ConfigMap cluster-info with bootstrap tokens and deletes expired tokens, as
// upstream's bootstrap-signer-controller and token-cleaner-controller do. `kubeadm join` needs both to find and trust a
// cluster. Its invariant: cluster-info has one signature for each valid token that may sign, and no other signatures.
package bootstraptokens

import (
	"context"
	"maps"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/cluster-bootstrap/token/api"
	"k8s.io/cluster-bootstrap/token/jws"
	"k8s.io/cluster-bootstrap/util/secrets"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/coracle-dev/coracle/pkg/engine"
)

var clusterInfo = engine.RequestFor(metav1.NamespacePublic, api.ConfigMapClusterInfo)

// NewSigner declares the reconciler that signs cluster-info.
func NewSigner() *engine.Reconciler {
	return &engine.Reconciler{
		Name: "bootstrap-signer", Account: "bootstrap-signer", Workers: 1,
		Watches: []engine.Watch{
			{Object: &corev1.ConfigMap{}, Map: func(_ context.Context, _ engine.Env, o client.Object) []engine.Request {
				if o.GetNamespace() != clusterInfo.Namespace || o.GetName() != clusterInfo.Name {
					return nil
				}
				return []engine.Request{clusterInfo}
			}},
			{Object: &corev1.Secret{}, Map: func(_ context.Context, _ engine.Env, o client.Object) []engine.Request {
				if !isToken(o) {
					return nil
				}
				return []engine.Request{clusterInfo}
			}},
		},
		Writes: []engine.Write{{Object: &corev1.ConfigMap{}, Parts: []engine.Part{engine.Spec}}},
		New: func(env engine.Env) engine.Func {
			return engine.Each(env, func(ctx context.Context, info *corev1.ConfigMap) (engine.Result, error) {
				var list corev1.SecretList
				if err := env.Cache.List(ctx, &list, client.InNamespace(metav1.NamespaceSystem)); err != nil {
					return engine.Result{}, err
				}
				signed, again, err := Sign(info, list.Items, env.Now())
				if err == nil && signed != nil {
					err = env.Client.Update(ctx, signed)
				}
				return engine.Result{RequeueAfter: again}, err
			})
		},
	}
}

func isToken(o client.Object) bool {
	s, ok := o.(*corev1.Secret)
	return ok && s.Namespace == metav1.NamespaceSystem && s.Type == api.SecretTypeBootstrapToken
}

// Sign returns info with the signatures that it should have, or nil if it already has them. again is the time
// until the next token expires, 0 if none does.
func Sign(info *corev1.ConfigMap, tokens []corev1.Secret,
	now time.Time) (signed *corev1.ConfigMap, again time.Duration, err error) {
	content, ok := info.Data[api.KubeConfigKey]
	if !ok {
		return nil, 0, nil
	}
	data := maps.Clone(info.Data)
	maps.DeleteFunc(data, func(key, _ string) bool { return strings.HasPrefix(key, api.JWSSignatureKeyPrefix) })
	for i := range tokens {
		id, secret, ok := forSigning(&tokens[i])
		left, expired := secrets.GetExpiration(&tokens[i], now)
		if !ok || expired {
			continue
		}
		if left > 0 && (again == 0 || left < again) {
			again = left
		}
		signature, err := jws.ComputeDetachedSignature(content, id, secret)
		if err != nil {
			return nil, 0, err
		}
		data[api.JWSSignatureKeyPrefix+id] = signature
	}
	if maps.Equal(data, info.Data) {
		return nil, again, nil
	}
	signed = info.DeepCopy()
	signed.Data = data
	return signed, again, nil
}

// forSigning returns the ID and the secret of a token. ok is false if the token may not sign.
func forSigning(s *corev1.Secret) (id, secret string, ok bool) {
	named, ok := secrets.ParseName(s.Name)
	id, secret = secrets.GetData(s, api.BootstrapTokenIDKey), secrets.GetData(s, api.BootstrapTokenSecretKey)
	ok = ok && isToken(s) && s.DeletionTimestamp == nil && id == named && secret != "" &&
		secrets.GetData(s, api.BootstrapTokenUsageSigningKey) == "true"
	return id, secret, ok
}

// NewCleaner declares the reconciler that deletes expired tokens.
func NewCleaner() *engine.Reconciler {
	return &engine.Reconciler{
		Name: "token-cleaner", Account: "token-cleaner", Workers: 1,
		Watches: []engine.Watch{
			{Object: &corev1.Secret{}, Map: func(_ context.Context, _ engine.Env, o client.Object) []engine.Request {
				if !isToken(o) {
					return nil
				}
				return []engine.Request{engine.RequestFor(o.GetNamespace(), o.GetName())}
			}},
		},
		Writes: []engine.Write{{Object: &corev1.Secret{}, Parts: []engine.Part{engine.Delete}}},
		New: func(env engine.Env) engine.Func {
			return engine.Each(env, func(ctx context.Context, s *corev1.Secret) (engine.Result, error) {
				if !isToken(s) || s.DeletionTimestamp != nil {
					return engine.Result{}, nil
				}
				left, expired := secrets.GetExpiration(s, env.Now())
				if !expired {
					return engine.Result{RequeueAfter: max(left, 0)}, nil
				}
				return engine.Result{}, engine.Remove(ctx, env.Client, s)
			})
		},
	}
}
