package server

import (
	"cmp"
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

	"github.com/coracle-dev/coracle/pkg/base/atomicfile"
	"github.com/coracle-dev/coracle/pkg/base/pki"
	"github.com/coracle-dev/coracle/pkg/base/run"
	"github.com/coracle-dev/coracle/pkg/systems/command"
)

// Context is the name of the context, cluster and user in kubeconfigs.
const Context = "coracle"

// adminKubeconfig writes the admin kubeconfig: the file in the data directory, and the context merged into the user's
// file. Its certificate is valid for a year. Each start issues a new one, and a running server renews it in time.
type adminKubeconfig struct {
	dataDir, url string
	merged       string // the user's file; empty for none
	keys         *pki.Set
	log          *slog.Logger

	mu      sync.Mutex
	renewal time.Time
	run.Readiness
}

var _ run.Component = (*adminKubeconfig)(nil)

func (k *adminKubeconfig) Name() string { return "kubeconfig" }

func (k *adminKubeconfig) Run(ctx context.Context) error {
	k.SetReady()
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
		timer := time.NewTimer(min(max(wait, time.Minute), clockCheck)) // see clockCheck
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil
		case <-timer.C:
		}
	}
}

func (k *adminKubeconfig) due() time.Duration {
	k.mu.Lock()
	defer k.mu.Unlock()
	return time.Until(k.renewal)
}

// write issues a certificate and writes both files. If the user has removed the context from their file, only a
// start adds it again.
func (k *adminKubeconfig) write(start bool) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	c, renewal, err := k.issue()
	if err != nil {
		return err
	}
	if err := replaceKubeconfig(filepath.Join(k.dataDir, command.Kubeconfig), c); err != nil {
		return err
	}
	if k.merged != "" {
		if err := mergeKubeconfig(k.merged, c, start); err != nil {
			return fmt.Errorf("could not add the context %q to your kubeconfig: %w: make it writable, or use "+
				"--merge-kubeconfig=false", Context, err)
		}
		trusted := c.Clusters[Context].CertificateAuthorityData
		if err := atomicfile.Write(filepath.Join(k.dataDir, mergedFile), trusted); err != nil {
			return err
		}
	}
	k.renewal = renewal
	return nil
}

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

// mergedFile is in a data directory and has the certificates that the context in the user's kubeconfig trusts. After a
// start without merging and a rotation these are no longer the cluster's.
const mergedFile = "merged-ca.crt"

// clusterCAs returns the certificates by which a context of the data directory's cluster is known, as PEM.
func clusterCAs(dataDir string) (cas []byte, err error) {
	for _, file := range []string{filepath.Join(pkiDir(dataDir), "server-ca.crt"), filepath.Join(dataDir, mergedFile)} {
		pem, err := os.ReadFile(file)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return nil, err
		}
		cas = append(cas, pem...)
	}
	return cas, nil
}

func userKubeconfig() string { return clientcmd.RecommendedHomeFile }

// mergeKubeconfig writes the context to the file at path. Unless add is set, it does so only if the file has a
// context of the same cluster. The context becomes the current one only if the file has none.
func mergeKubeconfig(path string, ours *api.Config, add bool) error {
	theirs, err := loadKubeconfig(path)
	if err != nil {
		return err
	}
	if there := theirs.Clusters[Context]; !add &&
		(there == nil || !shareCertificate(there.CertificateAuthorityData, ours.Clusters[Context].CertificateAuthorityData)) {
		return nil
	}
	theirs.Clusters[Context] = ours.Clusters[Context]
	theirs.AuthInfos[Context] = ours.AuthInfos[Context]
	theirs.Contexts[Context] = ours.Contexts[Context]
	theirs.CurrentContext = cmp.Or(theirs.CurrentContext, Context)
	return replaceKubeconfig(path, theirs)
}

// shareCertificate reports whether two PEM bundles have a certificate in common. Two CA bundles of one cluster
// always do, also during a CA's replacement.
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

// unmergeKubeconfig removes the context from the file at path if its cluster has this CA. If nothing else is left,
// it removes the file, and its directory if that is empty.
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
	_ = os.Remove(filepath.Dir(path)) // fails unless it is empty
	return nil
}

func loadKubeconfig(path string) (*api.Config, error) {
	c, err := clientcmd.LoadFromFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return api.NewConfig(), nil
	}
	if err != nil {
		return nil, fmt.Errorf("cannot parse %s (%w): correct it", path, err)
	}
	return c, nil
}

// replaceKubeconfig replaces the file atomically, because it may hold credentials of other clusters.
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
