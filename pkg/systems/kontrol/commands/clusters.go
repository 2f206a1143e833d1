package commands

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	ctrl "sigs.k8s.io/controller-runtime/pkg/client"

	kontrol "github.com/coracle-dev/coracle/apis/kontrol/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/base/count"
	"github.com/coracle-dev/coracle/pkg/systems/command"
	"github.com/coracle-dev/coracle/pkg/systems/kontrol/target"
)

// Clusters prints the registered clusters.
func (c *cluster) Clusters(ctx context.Context, format string, t command.Terminal) error {
	var list kontrol.ClusterList
	if err := c.Client.List(ctx, &list); err != nil {
		return err
	}
	switch {
	case format != "":
		list.APIVersion, list.Kind = kontrol.GroupVersion.String(), "ClusterList"
		for i := range list.Items {
			list.Items[i].APIVersion, list.Items[i].Kind, list.Items[i].ManagedFields = kontrol.GroupVersion.String(), "Cluster",
				nil
		}
		return command.PrintAs(t.Out, format, &list)
	case len(list.Items) == 0:
		_, err := fmt.Fprintln(t.Err, "No clusters. Add this one: coracle kontrol clusters add this --local")
		return err
	}
	now := time.Now()
	return command.Table(t.Out, "CLUSTER\tREADY\tVERSION?\tSERVER\tLAST SEEN?\tLABELS\tMESSAGE", func(line func(...any)) {
		for i := range list.Items {
			k := &list.Items[i]
			ready, message, seen := "Unknown", "", command.Ago(k.Status.LastSeen, now)
			if r := meta.FindStatusCondition(k.Status.Conditions, kontrol.ConditionReady); r != nil {
				if r.Status == metav1.ConditionTrue {
					ready, seen = "True", "now" // lastSeen is up to 5 minutes old
				} else {
					ready, message = r.Reason, r.Message
				}
			}
			server := k.Status.Server
			if k.Spec.Local {
				server = "(this one)"
			}
			version, _, _ := strings.Cut(k.Status.Version, "+") // the build is in -o json
			line(k.Name, ready, version, server, seen,
				strings.ReplaceAll(metav1.FormatLabelSelector(&metav1.LabelSelector{MatchLabels: k.Labels}), "<none>", ""),
				command.Shorten(message))
		}
	})
}

// ClusterOptions are the options of `coracle kontrol clusters add`.
type ClusterOptions struct {
	Name string
	// Local adds the cluster that serves this API. Otherwise Kubeconfig is a file, and Context one of its
	// contexts; empty means its current context.
	Local bool
	// Pull adds a cluster whose agent connects to the hub. The agent's token is written to TokenFile.
	Pull                bool
	TokenFile           string
	Kubeconfig, Context string
	// SecretNamespace is the namespace of the Secret with the kubeconfig; empty means kube-system.
	SecretNamespace string
	// Labels is a list of KEY=VALUE.
	Labels []string
}

// AddCluster creates a Cluster, and the Secret with its kubeconfig. For a Cluster that it created before, it
// replaces the kubeconfig, or makes a new token.
func (c *cluster) AddCluster(ctx context.Context, o ClusterOptions, out io.Writer) error {
	if ways := []bool{o.Local, o.Pull, o.Kubeconfig != ""}; len(slices.DeleteFunc(ways, func(is bool) bool {
		return !is
	})) != 1 {
		return errors.New("give one of --kubeconfig FILE, --pull and --local")
	}
	if o.Pull != (o.TokenFile != "") {
		return errors.New("--pull and --token-file FILE go together: the token is written there")
	}
	k := &kontrol.Cluster{
		ObjectMeta: metav1.ObjectMeta{Name: o.Name, Labels: map[string]string{}},
		Spec:       kontrol.ClusterSpec{Local: o.Local, Pull: o.Pull},
	}
	for _, pair := range o.Labels {
		key, value, ok := strings.Cut(pair, "=")
		if !ok || key == "" {
			return fmt.Errorf("--label %q is not of the form KEY=VALUE", pair)
		}
		k.Labels[key] = value
	}
	var secret *corev1.Secret
	if !o.Local && !o.Pull {
		data, err := portable(o.Kubeconfig, o.Context)
		if err != nil {
			return fmt.Errorf("kubeconfig %s: %w", o.Kubeconfig, err)
		}
		secret = &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: cmp.Or(o.SecretNamespace, kontrolNamespace),
				Name:      secretPrefix + o.Name,
				Labels:    map[string]string{clusterLabel: o.Name},
			},
			Data: map[string][]byte{kontrol.DefaultKey: data},
		}
		k.Spec.KubeconfigSecret = &kontrol.SecretReference{
			Namespace: secret.Namespace,
			Name:      secret.Name,
			Key:       kontrol.DefaultKey,
		}
	}
	if !o.Local {
		var old kontrol.Cluster
		err := c.Client.Get(ctx, ctrl.ObjectKeyFromObject(k), &old)
		if err == nil {
			return c.renew(ctx, &old, k, secret, o.TokenFile, out)
		}
		if !apierrors.IsNotFound(err) {
			return err
		}
	}
	if err := c.Client.Create(ctx, k, ctrl.DryRunAll); err != nil {
		return err
	}
	if secret != nil {
		if err := c.setSecret(ctx, secret); err != nil {
			return err
		}
	}
	if err := c.Client.Create(ctx, k); err != nil {
		return err
	}
	if o.Pull {
		if err := c.pullToken(ctx, k, o.TokenFile, false, out); err != nil {
			return err
		}
	}
	_, err := fmt.Fprintf(out, "cluster %s added\n", o.Name)
	return err
}

// renew replaces the kubeconfig of a Cluster that was added before, even if its Secret was deleted, or makes a token
// for its agent.
func (c *cluster) renew(ctx context.Context, old, k *kontrol.Cluster, secret *corev1.Secret, tokenFile string,
	out io.Writer) error {
	if old.Spec.Pull != k.Spec.Pull || !reflect.DeepEqual(old.Spec.KubeconfigSecret, k.Spec.KubeconfigSecret) {
		return fmt.Errorf("there is a cluster %[1]s, which is reached in another way: choose another name, or `coracle "+
			"kontrol clusters remove %[1]s` first", k.Name)
	}
	if len(k.Labels) > 0 {
		return fmt.Errorf("there is a cluster %[1]s: change its labels with `coracle ctl label cluster.kontrol.coracle.dev "+
			"%[1]s KEY=VALUE`; without --label its kubeconfig or token is renewed", k.Name)
	}
	if k.Spec.Pull {
		return c.pullToken(ctx, old, tokenFile, true, out)
	}
	if err := c.setSecret(ctx, secret); err != nil {
		return err
	}
	_, err := fmt.Fprintf(out, "cluster %s has this kubeconfig now\n", k.Name)
	return err
}

// The location of the Secrets that AddCluster creates.
const (
	kontrolNamespace = metav1.NamespaceSystem
	secretPrefix     = "kontrol-cluster-"
	clusterLabel     = "kontrol/cluster"
)

// setSecret creates a Secret, or replaces one of the same cluster.
func (c *cluster) setSecret(ctx context.Context, secret *corev1.Secret) error {
	err := c.Client.Create(ctx, secret)
	if !apierrors.IsAlreadyExists(err) {
		return err
	}
	var old corev1.Secret
	if err := c.Client.Get(ctx, ctrl.ObjectKeyFromObject(secret), &old); err != nil {
		return err
	}
	if old.Labels[clusterLabel] != secret.Labels[clusterLabel] {
		return fmt.Errorf("secret %s/%s exists and is not of cluster %s: delete it", old.Namespace, old.Name,
			secret.Labels[clusterLabel])
	}
	old.Data = maps.Clone(secret.Data)
	return c.Client.Update(ctx, &old)
}

// RemoveCluster deletes a Cluster without applied objects, and the Secret that AddCluster created for it.
func (c *cluster) RemoveCluster(ctx context.Context, name string, out io.Writer) error {
	k, err := c.getCluster(ctx, name)
	if err != nil {
		return err
	}
	list, err := c.matching(ctx, &KontrolOptions{Cluster: name})
	if err != nil {
		return err
	}
	if len(list) > 0 {
		return fmt.Errorf("cluster %s has %s, such as %s: first delete them, or remove the label by which a bundle selects "+
			"the cluster; `coracle help clusters` says how to remove a cluster that is gone",
			name, count.Of(len(list), "resource"), list[0].Name)
	}
	if err := c.Client.Delete(ctx, k); err != nil {
		return err
	}
	if s := k.Spec.KubeconfigSecret; s != nil {
		var secret corev1.Secret
		err := c.Client.Get(ctx, ctrl.ObjectKey{Namespace: s.Namespace, Name: s.Name}, &secret)
		if err == nil && secret.Labels[clusterLabel] == name {
			err = c.Client.Delete(ctx, &secret)
		}
		if ctrl.IgnoreNotFound(err) != nil {
			return err
		}
	}
	_, err = fmt.Fprintf(out, "cluster %s removed\n", name)
	return err
}

// portable returns one context of a kubeconfig, with the contents of the files that it refers to.
func portable(file, context string) ([]byte, error) {
	cfg, err := clientcmd.LoadFromFile(file)
	if err != nil {
		return nil, fmt.Errorf("cannot read %s as a kubeconfig: %w", file, err)
	}
	if context != "" {
		cfg.CurrentContext = context
	}
	if cfg.Contexts[cfg.CurrentContext] == nil {
		return nil, fmt.Errorf("no context %q", cfg.CurrentContext)
	}
	if err := clientcmdapi.MinifyConfig(cfg); err != nil {
		return nil, err
	}
	if err := clientcmdapi.FlattenConfig(cfg); err != nil {
		return nil, err
	}
	data, err := clientcmd.Write(*cfg)
	if err == nil {
		_, err = target.ParseKubeconfig(data)
	}
	return data, err
}

func (c *cluster) connectTo(ctx context.Context, name string) (ctrl.Client, error) {
	k, err := c.getCluster(ctx, name)
	if err != nil {
		return nil, err
	}
	config := c.REST
	if k.Spec.Pull {
		if config, err = throughHub(config, name); err != nil {
			return nil, err
		}
	}
	if s := k.Spec.KubeconfigSecret; s != nil {
		var secret corev1.Secret
		if err := c.Client.Get(ctx, ctrl.ObjectKey{Namespace: s.Namespace, Name: s.Name}, &secret); err != nil {
			return nil, fmt.Errorf("kubeconfig of cluster %s: %w", name, err)
		}
		var err error
		if config, err = target.ParseKubeconfig(secret.Data[s.Key]); err != nil {
			return nil, fmt.Errorf("kubeconfig of cluster %s: %w", name, err)
		}
	}
	return c.clientFor(config)
}

// clientFor returns a client that knows all kinds of a cluster.
func (c *cluster) clientFor(config *rest.Config) (ctrl.Client, error) {
	if c.target != nil {
		return c.target(config)
	}
	config = rest.CopyConfig(config)
	config.Timeout, config.QPS = targetPatience, -1 // one request at a time needs no limit
	return ctrl.New(config, ctrl.Options{})
}

// throughHub returns a config that reaches a pull cluster through the hub's proxy subresource.
func throughHub(hub *rest.Config, cluster string) (*rest.Config, error) {
	u, _, err := rest.DefaultServerUrlFor(hub)
	if err != nil {
		return nil, err
	}
	out := rest.CopyConfig(hub)
	out.Host = u.JoinPath("apis", kontrol.GroupVersion.Group, kontrol.GroupVersion.Version, "clusters", cluster, "proxy").
		String()
	return out, nil
}

// targetPatience limits a request to a registered cluster.
const targetPatience = 10 * time.Second
