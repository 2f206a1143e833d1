package server

import (
	"context"
	"crypto/tls"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/clientcmd/api"

	"github.com/coracle-dev/coracle/pkg/ctl"
	"github.com/coracle-dev/coracle/pkg/pki"
	"github.com/coracle-dev/coracle/pkg/run"
)

// Context is the name of the context, cluster and user in kubeconfigs.
const Context = "coracle"

// adminKubeconfig renews the admin kubeconfig: the one in the data directory, and the context that is merged into the user's
// own. Its certificate lasts a year, as every leaf does; each start issues a new one, and a server that runs does so in time.
type adminKubeconfig struct {
	dataDir, url string
	merged       string // the user's file; empty for none
	keys         *pki.Set
	log          *slog.Logger

	mu      sync.Mutex
	renewal time.Time
	ready   chan struct{}
}

var _ run.Component = (*adminKubeconfig)(nil)

// Name implements run.Component.
func (k *adminKubeconfig) Name() string { return "kubeconfig" }

// Ready implements run.Component.
func (k *adminKubeconfig) Ready() <-chan struct{} { return k.ready }

// Run renews until ctx ends.
func (k *adminKubeconfig) Run(ctx context.Context) error {
	close(k.ready)
	for {
		wait := k.due()
		if wait <= 0 {
			if err := k.write(false); err != nil {
				k.log.Warn("could not renew admin kubeconfig, retrying", "after", clockCheck, "error", err)
				wait = clockCheck
			} else {
				wait = k.due()
			}
		}
		timer := time.NewTimer(min(max(wait, time.Minute), clockCheck)) // the clock runs on while the machine is suspended
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil
		case <-timer.C:
		}
	}
}

// due is the time until renewal.
func (k *adminKubeconfig) due() time.Duration {
	k.mu.Lock()
	defer k.mu.Unlock()
	return time.Until(k.renewal)
}

// write issues a certificate and writes it. A context that the user has taken out of their file comes back only at a start.
func (k *adminKubeconfig) write(start bool) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	c, renewal, err := k.issue()
	if err != nil {
		return err
	}
	if err := replaceKubeconfig(filepath.Join(k.dataDir, ctl.Kubeconfig), c); err != nil {
		return err
	}
	if k.merged != "" {
		if err := mergeKubeconfig(k.merged, c, start); err != nil {
			return err
		}
	}
	k.renewal = renewal
	return nil
}

// issue creates a kubeconfig, and returns when it must be renewed.
func (k *adminKubeconfig) issue() (*api.Config, time.Time, error) {
	cert, key, err := k.keys.Client.Issue(pki.Leaf{Name: "coracle:admin", Groups: []string{"system:masters"}})
	if err != nil {
		return nil, time.Time{}, err
	}
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		return nil, time.Time{}, err
	}
	c := api.NewConfig()
	c.Clusters[Context] = &api.Cluster{Server: k.url, CertificateAuthorityData: k.keys.Server.Bundle()}
	c.AuthInfos[Context] = &api.AuthInfo{ClientCertificateData: cert, ClientKeyData: key}
	c.Contexts[Context] = &api.Context{Cluster: Context, AuthInfo: Context}
	c.CurrentContext = Context
	return c, pki.Renewal(pair.Leaf), nil
}

// userKubeconfig is ~/.kube/config.
func userKubeconfig() string { return clientcmd.RecommendedHomeFile }

// mergeKubeconfig puts our context into the file at path; unless add, only if that of the same cluster is there. It becomes the
// current one only if there is none.
func mergeKubeconfig(path string, ours *api.Config, add bool) error {
	theirs, err := loadKubeconfig(path)
	if err != nil {
		return err
	}
	if there := theirs.Clusters[Context]; !add && (there == nil || !shareCertificate(there.CertificateAuthorityData, ours.Clusters[Context].CertificateAuthorityData)) {
		return nil
	}
	theirs.Clusters[Context] = ours.Clusters[Context]
	theirs.AuthInfos[Context] = ours.AuthInfos[Context]
	theirs.Contexts[Context] = ours.Contexts[Context]
	if theirs.CurrentContext == "" {
		theirs.CurrentContext = Context
	}
	return replaceKubeconfig(path, theirs)
}

// shareCertificate reports whether two bundles of PEM have a certificate in common: those of one cluster have, however far the
// replacement of its authority is.
func shareCertificate(a, b []byte) bool {
	ders := map[string]bool{}
	for block, rest := pem.Decode(a); block != nil; block, rest = pem.Decode(rest) {
		ders[string(block.Bytes)] = true
	}
	for block, rest := pem.Decode(b); block != nil; block, rest = pem.Decode(rest) {
		if ders[string(block.Bytes)] {
			return true
		}
	}
	return false
}

// unmergeKubeconfig takes our context out of the file at path, if it is the one for the cluster that ca signs for. A
// file that holds nothing else is removed, and its directory if that is empty then.
func unmergeKubeconfig(path string, ca []byte) error {
	theirs, err := loadKubeconfig(path)
	if err != nil {
		return err
	}
	cluster := theirs.Clusters[Context]
	if cluster == nil || !shareCertificate(cluster.CertificateAuthorityData, ca) {
		return nil
	}
	delete(theirs.Clusters, Context)
	delete(theirs.AuthInfos, Context)
	delete(theirs.Contexts, Context)
	if theirs.CurrentContext == Context {
		theirs.CurrentContext = ""
	}
	if len(theirs.Clusters)+len(theirs.AuthInfos)+len(theirs.Contexts) > 0 {
		return replaceKubeconfig(path, theirs)
	}
	if err := os.Remove(path); err != nil {
		return err
	}
	_ = os.Remove(filepath.Dir(path)) // refuses unless it is empty
	return nil
}

func loadKubeconfig(path string) (*api.Config, error) {
	c, err := clientcmd.LoadFromFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return api.NewConfig(), nil
	}
	if err != nil {
		return nil, fmt.Errorf("cannot parse %s (%w): fix it, or use --merge-kubeconfig=false", path, err)
	}
	return c, nil
}

// replaceKubeconfig writes the file whole or not at all: it holds other clusters' credentials.
func replaceKubeconfig(path string, c *api.Config) error {
	data, err := clientcmd.Write(*c)
	if err != nil {
		return err
	}
	if target, err := filepath.EvalSymlinks(path); err == nil {
		path = target
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	beside := path + ".coracle"
	if err := os.WriteFile(beside, data, 0o600); err != nil {
		return err
	}
	return os.Rename(beside, path)
}
