package agent

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/coracle-dev/coracle/pkg/node/images/keyring"
	"github.com/coracle-dev/coracle/pkg/node/images/provider"
)

// openCredentials returns a function that asks credential provider plugins, or nil without CredentialConfig.
func (a *Agent) openCredentials() (func(context.Context, *corev1.Pod, string) []keyring.Credential, error) {
	if a.c.CredentialConfig == "" {
		return nil, nil //nolint:nilnil // they are optional
	}
	p, err := provider.New(provider.Config{
		File: a.c.CredentialConfig, BinDir: a.c.CredentialBinDir, Logger: a.log, Metrics: a.c.Metrics,
		Account: func(ctx context.Context, namespace, name string) (*corev1.ServiceAccount, error) {
			var account corev1.ServiceAccount
			err := a.c.Client.Get(ctx, types.NamespacedName{Namespace: namespace, Name: name}, &account)
			return &account, err
		},
		Token: func(ctx context.Context, p *corev1.Pod, account types.UID, audience string) (string, error) {
			return a.pods.TokenOf(ctx, p, account, audience)
		},
	})
	if err != nil {
		return nil, err
	}
	return p.Credentials, nil
}
