"""How like two images are: PSNR and SSIM, computed in float64 on the host, so that no device's arithmetic shows."""

from __future__ import annotations

import cv2
import numpy as np

MOST_PSNR = 100.0
"""Equal images have no finite PSNR; this counts instead."""
SIDE, SIGMA = 11, 1.5
"""Side and standard deviation in pixels of SSIM's Gaussian window."""
EQUAL = 1e-6
"""How far values may be apart to count as equal: the rounding of float32."""
C1, C2 = 0.01**2, 0.03**2


def psnr(found: np.ndarray, clean: np.ndarray) -> float:
    """Peak signal-to-noise ratio in dB of images [H, W, 3] with values 0 to 1: ``-10 log10(mean squared error)``,
    at most 100."""
    error = float(np.square(found.astype(np.float64) - clean).mean())
    return MOST_PSNR if error <= 0 else min(MOST_PSNR, -10 * float(np.log10(error)))


class Clean:
    """A clean image, ready to be compared with others.

    Args:
        image: [H, W, 3], values 0 to 1.
    """

    def __init__(self, image: np.ndarray) -> None:
        self.image = np.ascontiguousarray(image, dtype=np.float64)
        self.small = min(image.shape[:2]) < SIDE
        if not self.small:
            self.mean = _blur(self.image)
            self.variance = _blur(self.image**2) - self.mean**2

    def psnr(self, found: np.ndarray) -> float:
        """See ``psnr``."""
        return psnr(found, self.image)

    def ssim(self, found: np.ndarray) -> float:
        """Structural similarity (Wang et al., 2004) with an image [H, W, 3] of values 0 to 1.

        Mean over all pixels and channels; the Gaussian window of 11 x 11 pixels sees zeros beyond the border. An image
        with a side below 11 pixels has 1 if it is equal, else 0.
        """
        found = np.ascontiguousarray(found, dtype=np.float64)
        if self.small:
            return float(np.abs(found - self.image).max() <= EQUAL)
        mean = _blur(found)
        variance = _blur(found**2) - mean**2
        covariance = _blur(found * self.image) - mean * self.mean
        near = (2 * mean * self.mean + C1) * (2 * covariance + C2)
        far = (mean**2 + self.mean**2 + C1) * (variance + self.variance + C2)
        return float((near / far).mean())


def _window() -> np.ndarray:
    at = np.arange(SIDE) - SIDE // 2
    weights = np.exp(-(at**2) / (2 * SIGMA**2))
    return weights / weights.sum()


def _blur(image: np.ndarray) -> np.ndarray:
    window = _window()
    # a constant border is zero for linear filters
    return cv2.sepFilter2D(image, cv2.CV_64F, window, window, borderType=cv2.BORDER_CONSTANT)
