package target

import (
	"errors"
	"fmt"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/coracle-dev/coracle/pkg/api/payload"
	"github.com/coracle-dev/coracle/pkg/base/pki"
)

// maxKubeconfig is the maximum size of a kubeconfig, in bytes.
const maxKubeconfig = 1 << 20

// ParseKubeconfig returns the client configuration of a kubeconfig's current context. It rejects fields that would run
// a command or read a file on this machine: the writer of the Secret must not act on the hub.
func ParseKubeconfig(data []byte) (*rest.Config, error) {
	if len(data) > maxKubeconfig {
		return nil, fmt.Errorf("larger than %d bytes", maxKubeconfig)
	}
	if err := payload.CheckYAML(data); err != nil { // aliases may expand to gigabytes
		return nil, err
	}
	cfg, err := clientcmd.Load(data)
	if err != nil {
		return nil, fmt.Errorf("cannot be parsed: %w", err)
	}
	context := cfg.Contexts[cfg.CurrentContext]
	if context == nil {
		return nil, fmt.Errorf("no context %q: set current-context", cfg.CurrentContext)
	}
	cluster, user := cfg.Clusters[context.Cluster], cfg.AuthInfos[context.AuthInfo]
	if cluster == nil {
		return nil, fmt.Errorf("no cluster %q", context.Cluster)
	}
	if cluster.Server == "" {
		return nil, fmt.Errorf("cluster %q has no server", context.Cluster)
	}
	if cluster.CertificateAuthority != "" {
		return nil, errors.New("certificate-authority is a file: use certificate-authority-data")
	}
	if user != nil {
		for name, set := range map[string]bool{
			"exec runs a command: use a token or client-certificate-data":       user.Exec != nil,
			"auth-provider is a plugin: use a token or client-certificate-data": user.AuthProvider != nil,
			"client-certificate is a file: use client-certificate-data":         user.ClientCertificate != "",
			"client-key is a file: use client-key-data":                         user.ClientKey != "",
			"tokenFile is a file: use token":                                    user.TokenFile != "",
			"Kubernetes no longer accepts username and password: use a token": user.Username != "" ||
				user.Password != "",
		} {
			if set {
				return nil, errors.New(name)
			}
		}
	}
	if user != nil && len(user.ClientKeyData) > 0 {
		if _, err := pki.ForeignPair(user.ClientCertificateData, user.ClientKeyData); err != nil {
			return nil, fmt.Errorf("client-certificate-data and client-key-data: %w", err)
		}
	}
	out, err := clientcmd.NewNonInteractiveClientConfig(*cfg, cfg.CurrentContext, &clientcmd.ConfigOverrides{}, nil).
		ClientConfig()
	if err != nil {
		return nil, err
	}
	return out, nil
}
