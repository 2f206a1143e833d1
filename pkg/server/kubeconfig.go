package server

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/clientcmd/api"

	"github.com/coracle-dev/coracle/pkg/ctl"
	"github.com/coracle-dev/coracle/pkg/pki"
)

// Context is the name of the context, cluster and user in kubeconfigs.
const Context = "coracle"

// adminLife is how long the admin's certificate lasts; every start of the server issues a new one.
const adminLife = 10 * leafYear

// writeKubeconfig writes the admin's kubeconfig into the data directory and returns it.
func writeKubeconfig(dataDir, url string, keys *pki.Set) (*api.Config, error) {
	cert, key, err := keys.Client.Issue(pki.Leaf{Name: "coracle:admin", Groups: []string{"system:masters"}, Life: adminLife})
	if err != nil {
		return nil, err
	}
	c := api.NewConfig()
	c.Clusters[Context] = &api.Cluster{Server: url, CertificateAuthorityData: keys.Server.PEM}
	c.AuthInfos[Context] = &api.AuthInfo{ClientCertificateData: cert, ClientKeyData: key}
	c.Contexts[Context] = &api.Context{Cluster: Context, AuthInfo: Context}
	c.CurrentContext = Context
	return c, clientcmd.WriteToFile(*c, filepath.Join(dataDir, ctl.Kubeconfig))
}

// userKubeconfig is ~/.kube/config.
func userKubeconfig() string { return clientcmd.RecommendedHomeFile }

// mergeKubeconfig puts our context into the file at path. It becomes the current one only if there is none.
func mergeKubeconfig(path string, ours *api.Config) error {
	theirs, err := loadKubeconfig(path)
	if err != nil {
		return err
	}
	theirs.Clusters[Context] = ours.Clusters[Context]
	theirs.AuthInfos[Context] = ours.AuthInfos[Context]
	theirs.Contexts[Context] = ours.Contexts[Context]
	if theirs.CurrentContext == "" {
		theirs.CurrentContext = Context
	}
	return replaceKubeconfig(path, theirs)
}

// unmergeKubeconfig takes our context out of the file at path, if it is the one for the cluster that ca signs for. A
// file that holds nothing else is removed, and its directory if that is empty then.
func unmergeKubeconfig(path string, ca []byte) error {
	theirs, err := loadKubeconfig(path)
	if err != nil {
		return err
	}
	cluster := theirs.Clusters[Context]
	if cluster == nil || string(cluster.CertificateAuthorityData) != string(ca) {
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
		return nil, fmt.Errorf("%s cannot be read (%w): mend it, or use --merge-kubeconfig=false", path, err)
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
