package upstream

import (
	"crypto/ecdsa"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/coracle-dev/coracle/pkg/base/pki"
)

// frontProxy is the name in the client certificate with which the API server forwards user names to extension servers.
const frontProxy = "front-proxy-client"

// users are the users whose kubeconfigs are written, by file name.
var users = map[string]pki.Leaf{
	"admin":    {Name: "admin", Groups: []string{"system:masters"}},
	Controller: {Name: "system:kube-controller-manager"},
	Scheduler:  {Name: "system:kube-scheduler"},
}

// files are the files that the programs read, in a folder.
type files struct{ dir string }

func (f files) path(name string) string       { return filepath.Join(f.dir, name) }
func (f files) kubeconfig(user string) string { return f.path(user + ".kubeconfig") }

func (f files) write(name string, text []byte) error {
	return os.WriteFile(f.path(name), text, 0o600)
}

func (f files) pair(name string, a *pki.Authority, leaf pki.Leaf) error {
	cert, key, err := a.Issue(leaf)
	if err != nil {
		return err
	}
	return errors.Join(f.write(name+".crt", cert), f.write(name+".key", key))
}

// writeKeys loads or generates the keys, and writes the files that the programs read.
func (c *Config) writeKeys() (f files, err error) {
	f = files{dir: c.Dir}
	keys, err := pki.Load(c.Keys)
	if err != nil {
		return f, err
	}
	proxy, err := pki.LoadFrontProxy(c.Keys)
	if err != nil {
		return f, err
	}
	service, err := firstAddress(c.ServiceCIDR)
	if err != nil {
		return f, err
	}
	accounts, err := encode(keys.ServiceAccount)
	if err != nil {
		return f, err
	}
	signing, err := os.ReadFile(filepath.Join(c.Keys, "client-ca.key"))
	if err != nil {
		return f, err
	}
	hosts := []string{
		c.Address, "127.0.0.1", "localhost", service, "kubernetes", "kubernetes.default", "kubernetes.default.svc",
		"kubernetes.default.svc.cluster.local",
	}
	err = errors.Join(
		f.write("server-ca.crt", keys.Server.Bundle()), f.write("client-ca.crt", keys.Client.Bundle()),
		f.write("node-ca.crt", keys.Node.Bundle()),
		f.write("front-proxy-ca.crt", proxy.Bundle()), f.write("accounts.key", accounts), f.write("client-ca.key", signing),
		f.pair("server", keys.Server, pki.Leaf{Name: APIServer, Hosts: hosts}),
		f.pair("kubelet", keys.Client, pki.Leaf{Name: "kube-apiserver-kubelet-client", Groups: []string{"system:masters"}}),
		f.pair("front-proxy", proxy, pki.Leaf{Name: frontProxy}),
	)
	for name, leaf := range users {
		err = errors.Join(err, c.writeKubeconfig(f.kubeconfig(name), keys, leaf))
	}
	return f, err
}

func (c *Config) writeKubeconfig(path string, keys *pki.Set, leaf pki.Leaf) error {
	cert, key, err := keys.Client.Issue(leaf)
	if err != nil {
		return err
	}
	const name = "upstream"
	k := clientcmdapi.NewConfig()
	k.Clusters[name] = &clientcmdapi.Cluster{
		Server:                   "https://" + net.JoinHostPort(c.Address, strconv.Itoa(c.Port)),
		CertificateAuthorityData: keys.Server.Bundle(),
	}
	k.AuthInfos[name] = &clientcmdapi.AuthInfo{ClientCertificateData: cert, ClientKeyData: key}
	k.Contexts[name] = &clientcmdapi.Context{Cluster: name, AuthInfo: name}
	k.CurrentContext = name
	return clientcmd.WriteToFile(*k, path)
}

func firstAddress(cidr string) (string, error) {
	p, err := netip.ParsePrefix(cidr)
	if err != nil {
		return "", err
	}
	return p.Masked().Addr().Next().String(), nil
}

func encode(key *ecdsa.PrivateKey) ([]byte, error) {
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return nil, err
	}
	return pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der}), nil
}
