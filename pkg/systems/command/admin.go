package command

import (
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"k8s.io/client-go/tools/clientcmd"

	"github.com/coracle-dev/coracle/pkg/base/pki"
)

// AdminCertificate returns the certificate in the administrator's kubeconfig in dataDir, or nothing on a machine that
// has no such file.
func AdminCertificate(dataDir string) ([]pki.Item, error) {
	path := filepath.Join(dataDir, Kubeconfig)
	c, err := clientcmd.LoadFromFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	for _, info := range c.AuthInfos {
		if block, _ := pem.Decode(info.ClientCertificateData); block != nil {
			cert, err := x509.ParseCertificate(block.Bytes)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", path, err)
			}
			written, err := os.Stat(path)
			if err != nil {
				return nil, err
			}
			return []pki.Item{{
				Name: "admin certificate", File: path, Since: written.ModTime(), Until: cert.NotAfter,
				Renewal: pki.RenewedAlone,
			}}, nil
		}
	}
	return nil, nil
}
