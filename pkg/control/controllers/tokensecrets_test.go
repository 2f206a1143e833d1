package controllers_test

import (
	"context"
	"log/slog"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/coracle-dev/coracle/pkg/testing/controlplane"
)

// TestKeptTokens: a Secret that requests a service account token gets one, with the current CA bundle. It is
// deleted with its service account.
func TestKeptTokens(t *testing.T) {
	c := start(t, controlplane.Options{
		Log: slog.LevelError, RootCA: []byte("old"),
		Sign: func(_ context.Context, a *corev1.ServiceAccount, s *corev1.Secret) (string, error) {
			return string(a.UID) + " " + s.Name, nil
		},
	})
	ask := func(name, account string) *corev1.Secret {
		return &corev1.Secret{
			Type: corev1.SecretTypeServiceAccountToken,
			ObjectMeta: metav1.ObjectMeta{
				Namespace:   "default",
				Name:        name,
				Annotations: map[string]string{corev1.ServiceAccountNameKey: account},
			},
		}
	}
	robot := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "robot"}}
	c.Make(robot, ask("s", "robot"), ask("stray", "nobody"))
	c.Gone(ask("stray", ""))
	got := controlplane.Until(c, &corev1.SecretList{}, "default", "s", func(s *corev1.Secret) bool {
		return len(s.Data["token"]) > 0
	})
	require.Equal(t, map[string]string{"token": string(robot.UID) + " s", "namespace": "default", "ca.crt": "old"},
		text(got.Data))
	require.Equal(t, string(robot.UID), got.Annotations[corev1.ServiceAccountUIDKey])

	c.RootCA.Set([]byte("new"))
	got = controlplane.Until(c, &corev1.SecretList{}, "default", "s", func(s *corev1.Secret) bool {
		return string(s.Data["ca.crt"]) == "new"
	})
	require.Equal(t, string(robot.UID)+" s", string(got.Data["token"]))

	require.NoError(t, c.Delete(c.Ctx, robot))
	c.Gone(ask("s", ""))
}

func text(data map[string][]byte) map[string]string {
	out := map[string]string{}
	for k, v := range data {
		out[k] = string(v)
	}
	return out
}
