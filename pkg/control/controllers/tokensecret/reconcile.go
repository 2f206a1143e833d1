// Package tokensecret writes service account tokens to the Secrets that request one (type
// kubernetes.io/service-account-token). Such a token does not expire: it is valid while its Secret and account exist.
// It is meant for clients outside the cluster; pods have better tokens. Its invariant: it never replaces an existing
// token, and deletes Secrets whose account does not exist.
package tokensecret

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/coracle-dev/coracle/pkg/engine"
)

// Sign returns a token of a service account for a Secret.
type Sign func(context.Context, *corev1.ServiceAccount, *corev1.Secret) (string, error)

// Bundle is the CA bundle that verifies the API server. It may change.
type Bundle interface {
	PEM() string
	// Follow registers a callback for changes. It replaces the earlier one of the same name.
	Follow(name string, changed func())
}

const (
	name    = "serviceaccount-token"
	byOwner = "serviceaccount"
)

// New declares the reconciler.
func New(sign Sign, bundle Bundle) *engine.Reconciler {
	return &engine.Reconciler{
		Name: name,
		Watches: []engine.Watch{
			{Object: &corev1.Secret{}, Map: ofSecret},
			{Object: &corev1.ServiceAccount{}, Event: ofAccount},
		},
		Writes: []engine.Write{
			{Object: &corev1.Secret{}, Parts: []engine.Part{engine.Spec, engine.Metadata, engine.Delete}},
		},
		Indexes: []engine.Index{{Object: &corev1.Secret{}, Name: byOwner, Values: values}},
		New: func(env engine.Env) engine.Func {
			bundle.Follow(name, func() {
				var all corev1.SecretList
				if err := env.Cache.List(context.Background(), &all); err != nil {
					env.Log.Warn("could not list secrets to update the CA bundle in them", "error", err)
				}
				for _, req := range engine.Requests(all.Items, func(s *corev1.Secret) bool { return accountOf(s) != "" }) {
					env.Enqueue(req, 0)
				}
			})
			return engine.Each(env, func(ctx context.Context, s *corev1.Secret) (engine.Result, error) {
				return engine.Result{}, reconcile(ctx, env, s, sign, []byte(bundle.PEM()))
			})
		},
	}
}

func values(o client.Object) []string {
	if s, ok := o.(*corev1.Secret); ok && accountOf(s) != "" {
		return []string{accountOf(s)}
	}
	return nil
}

func ofSecret(_ context.Context, _ engine.Env, o client.Object) []engine.Request {
	if len(values(o)) == 0 {
		return nil
	}
	return []engine.Request{engine.RequestFor(o.GetNamespace(), o.GetName())}
}

// ofAccount maps a deleted or replaced account to its Secrets.
func ofAccount(ctx context.Context, env engine.Env, was, is client.Object) []engine.Request {
	if was == nil || is != nil && is.GetUID() == was.GetUID() {
		return nil
	}
	var secrets corev1.SecretList
	if err := env.ByIndex(ctx, &secrets, was.GetNamespace(), byOwner, was.GetName()); err != nil {
		env.Log.Warn("could not list the secrets of a service account", "namespace", was.GetNamespace(), "account",
			was.GetName(), "error", err)
		return nil
	}
	return engine.Requests(secrets.Items, nil)
}

func reconcile(ctx context.Context, env engine.Env, secret *corev1.Secret, sign Sign, ca []byte) error {
	owner := accountOf(secret)
	if owner == "" {
		return nil
	}
	account, err := engine.Find[corev1.ServiceAccount](ctx, env.Cache, secret.Namespace, owner)
	if err != nil {
		return err
	}
	d := Plan(secret, account, ca)
	switch {
	case d.Delete:
		env.Events.Event(secret, corev1.EventTypeWarning, "ServiceAccountMissing",
			"Deleted the secret: its service account %q does not exist", owner)
		return engine.Remove(ctx, env.Client, secret)
	case d.Write == nil:
		return nil
	case d.Sign:
		token, err := sign(ctx, account, d.Write)
		if err != nil {
			return err
		}
		d.Write.Data[corev1.ServiceAccountTokenKey] = []byte(token)
	}
	return env.Client.Update(ctx, d.Write)
}
