package commands

import (
	"context"
	"fmt"
	"io"
	"os"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	kontrol "github.com/coracle-dev/coracle/apis/kontrol/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/systems/kontrol/pull"
)

// pullTokenLife is how long an agent's token is valid.
const pullTokenLife = 365 * 24 * time.Hour

// pullToken creates a service account that may only connect as the cluster, and writes its token and the hub's CA to a
// file. With again it may exist. The account is deleted with the Cluster.
func (c *cluster) pullToken(ctx context.Context, k *kontrol.Cluster, file string, again bool, out io.Writer) error {
	name := pull.Account + k.Name
	meta := metav1.ObjectMeta{
		Name: name,
		OwnerReferences: []metav1.OwnerReference{
			{APIVersion: kontrol.GroupVersion.String(), Kind: "Cluster", Name: k.Name, UID: k.UID},
		},
	}
	account := &corev1.ServiceAccount{ObjectMeta: meta}
	account.Namespace = kontrolNamespace
	for _, create := range []func() error{
		func() error { return c.Client.Create(ctx, account) },
		func() error {
			return c.Client.Create(ctx, &rbacv1.ClusterRole{ObjectMeta: meta, Rules: []rbacv1.PolicyRule{{
				APIGroups: []string{kontrol.GroupVersion.Group}, Resources: []string{"clusters/tunnel"},
				ResourceNames: []string{k.Name}, Verbs: []string{"create"}}}})
		},
		func() error {
			return c.Client.Create(ctx, &rbacv1.ClusterRoleBinding{
				ObjectMeta: meta, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: name},
				Subjects: []rbacv1.Subject{{Kind: "ServiceAccount", Namespace: kontrolNamespace, Name: name}},
			})
		},
	} {
		if err := create(); err != nil && !(again && apierrors.IsAlreadyExists(err)) {
			return err
		}
	}
	seconds := int64(pullTokenLife / time.Second)
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: &seconds}}
	if err := c.Client.SubResource("token").Create(ctx, account, request); err != nil {
		return err
	}
	hub := rest.CopyConfig(c.REST)
	if err := rest.LoadTLSFiles(hub); err != nil {
		return err
	}
	data := append([]byte(request.Status.Token+"\n"), hub.CAData...)
	if err := os.WriteFile(file, data, 0o600); err != nil {
		return err
	}
	_, err := fmt.Fprintf(out, "Copy %[2]s to the cluster, and run this there (the token is valid until %[3]s):\n\n"+
		"  coracle agent kontrol --hub %[1]s --token-file %[2]s\n\n",
		hub.Host, file, request.Status.ExpirationTimestamp.Format(time.DateOnly))
	return err
}
