"""Pictures: boxes and labels on photos, grids of photos, and charts. All take and return RGB unless they say BGR."""
